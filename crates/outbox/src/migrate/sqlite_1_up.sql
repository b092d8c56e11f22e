-- The events. seq is the order of writing; exactly one of payload and payload_bytes is set. Instants are microseconds
-- since 1970. A writer in any language inserts event_id, event_type and a payload, and whatever else it has to say; the
-- defaults do the rest.
create table "{table}" (
  seq            integer primary key autoincrement, -- never the number of a deleted row again
  event_id       text    not null unique check (length(event_id) <= 36),
  event_type     text    not null check (length(event_type) <= 128),
  aggregate_type text    not null default '__GLOBAL__' check (length(aggregate_type) <= 64),
  aggregate_id   text check (length(aggregate_id) <= 128),
  tenant_id      text check (length(tenant_id) <= 64),
  payload        text check (payload is null or json_valid(payload)),
  payload_bytes  blob,
  headers        text check (headers is null or json_valid(headers)),
  status         integer not null default 0 check (status between 0 and 3), -- 0 new, 1 done, 2 retry, 3 dead
  attempts       integer not null default 0,
  occurred_at    integer not null default (cast(round((julianday('now') - 2440587.5) * 86400000) as integer) * 1000),
  created_at     integer not null default (cast(round((julianday('now') - 2440587.5) * 86400000) as integer) * 1000),
  available_at   integer not null default (cast(round((julianday('now') - 2440587.5) * 86400000) as integer) * 1000),
  done_at        integer,
  dead_at        integer,
  last_error     text,
  locked_by      text,
  lease_until    integer,
  token          integer not null default 0,
  -- SQLite has no hash function: the last characters of a key, which differ where the keys do.
  lane           integer generated always as (
                   (ifnull(unicode(substr(coalesce(aggregate_id, event_id), -1, 1)), 0)
                    + 7 * ifnull(unicode(substr(coalesce(aggregate_id, event_id), -2, 1)), 0)
                    + 31 * ifnull(unicode(substr(coalesce(aggregate_id, event_id), -3, 1)), 0)
                    + length(coalesce(aggregate_id, event_id))) & 63) virtual,
  done_by        text,
  check ((payload is null) <> (payload_bytes is null))
) strict;

-- Pending rows alone, in the order they are due: delivered rows slow nothing down.
create index "{table}_pending" on "{table}" (available_at, seq) where status in (0, 2);

-- Pending rows alone, in the order of writing: how the owner of a lane reads it.
create index "{table}_pending_seq" on "{table}" (seq) where status in (0, 2);

-- Dead rows alone.
create index "{table}_dead" on "{table}" (dead_at) where status = 3;

-- Failed attempts: written only on failure, so that success costs nothing.
create table "{table}_attempt" (
  id        integer primary key autoincrement,
  seq       integer not null,
  attempt   integer not null,
  node      text    not null,
  error     text    not null,
  failed_at integer not null default (cast(round((julianday('now') - 2440587.5) * 86400000) as integer) * 1000)
) strict;

create index "{table}_attempt_seq" on "{table}_attempt" (seq);

-- Work that one node at a time may do.
create table "{table}_lease" (
  name        text    not null primary key,
  owner       text    not null,
  epoch       integer not null,
  lease_until integer not null
) strict;

-- The nodes that share the lanes, while they live.
create table "{table}_node" (
  name        text    not null primary key,
  joined_at   integer not null default (cast(round((julianday('now') - 2440587.5) * 86400000) as integer) * 1000),
  lease_until integer not null
) strict;

-- Who reads which lane. A lane of nobody, or of no living node, is free; epoch counts its owners.
create table "{table}_lane" (
  lane  integer not null primary key,
  owner text,
  epoch integer not null default 0
) strict;

insert into "{table}_lane" (lane)
with recursive lanes(lane) as (select 0 union all select lane + 1 from lanes where lane < 63) select lane from lanes;

-- Keys whose events wait: until an instant for one that is to be tried again, or until an operator says so (null).
create table "{table}_key" (
  aggregate_type text    not null,
  aggregate_id   text    not null,
  seq            integer not null, -- the event that holds the others back
  blocked_at     integer not null default (cast(round((julianday('now') - 2440587.5) * 86400000) as integer) * 1000),
  blocked_until  integer,
  primary key (aggregate_type, aggregate_id)
) strict;
