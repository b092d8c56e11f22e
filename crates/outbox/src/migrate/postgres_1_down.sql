drop table "{table}_key";
drop table "{table}_lane";
drop table "{table}_node";
drop table "{table}_lease";
drop table "{table}_attempt";
drop table "{table}";
