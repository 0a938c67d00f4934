//! A database over time: copies and restored backups, schemas of other versions, roles, a primary that becomes a standby.

mod acknowledged;
mod demotion;
mod encodings;
mod epoch_leases;
mod epochs;
mod own_database;
mod roles;
mod upgrades;
