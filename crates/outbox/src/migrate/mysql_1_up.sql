-- The events. seq is the order of writing; exactly one of payload and payload_bytes is set. A writer in any language
-- inserts event_id, event_type and a payload, and whatever else it has to say; the defaults do the rest.
create table if not exists `{table}` (
  seq            bigint       not null auto_increment,
  event_id       varchar(36)  not null,
  event_type     varchar(128) not null,
  aggregate_type varchar(64)  not null default '__GLOBAL__',
  aggregate_id   varchar(128),
  tenant_id      varchar(64),
  payload        longtext check (json_valid(payload)), -- not json, which MySQL rewrites
  payload_bytes  longblob,
  headers        longtext check (json_valid(headers)),
  status         tinyint      not null default 0, -- 0 new, 1 done, 2 retry, 3 dead
  attempts       int          not null default 0,
  occurred_at    datetime(6)  not null default (utc_timestamp(6)),
  created_at     datetime(6)  not null default (utc_timestamp(6)),
  available_at   datetime(6)  not null default (utc_timestamp(6)),
  done_at        datetime(6),
  dead_at        datetime(6),
  last_error     text,
  locked_by      varchar(128),
  lease_until    datetime(6),
  token          bigint       not null default 0,
  lane           smallint generated always as
                   (crc32(coalesce(concat(aggregate_type, ':', aggregate_id), event_id)) & 63) stored,
  done_by        text,
  -- available_at while the row is pending, else null: the place of a partial index.
  pending_at     datetime(6) generated always as (case when status in (0, 2) then available_at end) stored,
  -- One while the row is pending, else null.
  pending        tinyint generated always as (case when status in (0, 2) then 1 end) stored,
  primary key (seq),
  unique key `{table}_event_id` (event_id),
  -- Pending rows in the order they are due; those that are delivered lie behind null, where no scan comes by.
  key `{table}_pending` (pending_at, seq),
  -- Pending rows in the order of writing: how the owner of a lane reads it.
  key `{table}_pending_seq` (pending, seq, lane),
  -- Dead rows; all others lie behind null.
  key `{table}_dead` (dead_at),
  constraint `{table}_one_payload` check ((payload is null) <> (payload_bytes is null)),
  constraint `{table}_status` check (status between 0 and 3)
) engine = InnoDB default character set utf8mb4 collate utf8mb4_bin;

-- Failed attempts: written only on failure, so that success costs nothing.
create table if not exists `{table}_attempt` (
  id        bigint       not null auto_increment primary key,
  seq       bigint       not null,
  attempt   int          not null,
  node      varchar(128) not null,
  error     text         not null,
  failed_at datetime(6)  not null default (utc_timestamp(6)),
  key `{table}_attempt_seq` (seq)
) engine = InnoDB default character set utf8mb4 collate utf8mb4_bin;

-- Work that one node at a time may do.
create table if not exists `{table}_lease` (
  name        varchar(64)  not null primary key,
  owner       varchar(128) not null,
  epoch       bigint       not null,
  lease_until datetime(6)  not null
) engine = InnoDB default character set utf8mb4 collate utf8mb4_bin;

-- The nodes that share the lanes, while they live.
create table if not exists `{table}_node` (
  name        varchar(160) not null primary key,
  joined_at   datetime(6)  not null default (utc_timestamp(6)),
  lease_until datetime(6)  not null
) engine = InnoDB default character set utf8mb4 collate utf8mb4_bin;

-- Who reads which lane. A lane of nobody, or of no living node, is free; epoch counts its owners.
create table if not exists `{table}_lane` (
  lane  smallint not null primary key,
  owner varchar(160),
  epoch bigint   not null default 0
) engine = InnoDB default character set utf8mb4 collate utf8mb4_bin;

insert ignore into `{table}_lane` (lane)
with recursive lanes(lane) as (select 0 union all select lane + 1 from lanes where lane < 63) select lane from lanes;

-- Keys whose events wait: until an instant for one that is to be tried again, or until an operator says so (null).
create table if not exists `{table}_key` (
  aggregate_type varchar(64)  not null,
  aggregate_id   varchar(128) not null,
  seq            bigint       not null, -- the event that holds the others back
  blocked_at     datetime(6)  not null default (utc_timestamp(6)),
  blocked_until  datetime(6),
  primary key (aggregate_type, aggregate_id)
) engine = InnoDB default character set utf8mb4 collate utf8mb4_bin;
