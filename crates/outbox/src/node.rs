/// A name for this run of this process, as the owner of leases: unique, and telling where to look.
pub(crate) fn name() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host: String = host.trim().chars().filter(|c| c.is_ascii_graphic()).take(60).collect();
    let host = if host.is_empty() { "node" } else { &host };
    format!("{host}:{}:{:08x}", std::process::id(), rand::random::<u32>())
}
