drop table "{table}_lease";
drop table "{table}_attempt";
drop table "{table}";
