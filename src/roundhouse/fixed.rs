//! What a running server can't change.

use crate::config::Config;

/// The paths of keys that differ and can't be changed without a restart; empty where `new` may be served at once.
pub(super) fn fixed(present: &Config, new: &Config) -> Vec<String> {
    let mut keys = Vec::new();
    let mut check = |key: &str, same: bool| {
        if !same {
            keys.push(key.to_owned());
        }
    };
    check("server.listen", present.server.listen == new.server.listen);
    check("server.threads", present.server.threads == new.server.threads);
    check("server.drain", present.server.drain == new.server.drain);
    check("admin.listen", present.admin.listen == new.admin.listen);
    // Whether a port is encrypted; by which certificates may change.
    check("server.tls", present.server.tls.is_some() == new.server.tls.is_some());
    check("admin.tls", present.admin.tls.is_some() == new.admin.tls.is_some());
    check("log", present.log == new.log);
    check("store", present.store == new.store);
    for name in present.devices.keys().chain(new.devices.keys()) {
        check(&format!("devices.{name}"), present.devices.get(name) == new.devices.get(name));
    }
    keys.sort();
    keys.dedup();
    keys
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenants_models_shards_and_soft_keys_change_and_sockets_stores_and_devices_do_not() {
        let present = Config::default();
        let mut soft = Config::default();
        soft.server.max_body += 1;
        soft.tenants.insert("acme".into(), std::sync::Arc::new(crate::config::Tenant::new("acme".into())));
        soft.models.clear();
        soft.shards.clear();
        assert_eq!(fixed(&present, &soft), Vec::<String>::new());

        let mut hard = Config::default();
        hard.server.listen.set_port(1);
        hard.admin.listen.set_port(2);
        hard.store.ledger = crate::config::Ledger::Off;
        hard.devices.clear();
        assert_eq!(fixed(&present, &hard), ["admin.listen", "devices.cpu", "server.listen", "store"]);
    }
}
