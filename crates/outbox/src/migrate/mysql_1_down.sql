drop table if exists `{table}_key`;
drop table if exists `{table}_lane`;
drop table if exists `{table}_node`;
drop table if exists `{table}_lease`;
drop table if exists `{table}_attempt`;
drop table if exists `{table}`;
