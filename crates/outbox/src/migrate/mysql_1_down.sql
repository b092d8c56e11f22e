drop table if exists `{table}_lease`;
drop table if exists `{table}_attempt`;
drop table if exists `{table}`;
