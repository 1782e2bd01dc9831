//! What operators can ask of a running server.

use super::house::House;
use crate::admin::{ConfigStatus, Control, Reloaded, ShardStatus, Status, TenantStatus, UpstreamStatus};
use crate::backend::Backend;
use crate::config::Config;
use crate::model::source::shown;
use crate::route::Experiments;
use crate::tenant::{Accounts, Keys};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, PoisonError};

impl Control for House {
    fn config(&self) -> Arc<Config> {
        self.stack.load().config.clone()
    }

    fn keys(&self) -> Arc<Keys> {
        self.stack.load().keys.clone()
    }

    fn accounts(&self) -> Arc<Accounts> {
        self.lasting.accounts.clone()
    }

    fn experiments(&self) -> Arc<Experiments> {
        self.lasting.experiments.clone()
    }

    fn reload(&self) -> Result<Reloaded, String> {
        self.reload_file().map_err(|error| error.to_string())
    }

    fn status(&self) -> Status {
        let config = Control::config(self);
        let since = self.since.lock().unwrap_or_else(PoisonError::into_inner).as_secs();
        let shards = self.lasting.shards.iter().filter_map(|(name, shard)| {
            let configured = config.shards.get(name)?;
            let ((running, waiting), (blocks_free, blocks)) = (shard.sequences(), shard.blocks());
            let status = ShardStatus {
                state: shard.state(),
                device: configured.device.clone(),
                weights: shown(&configured.weights),
                digest: shard.digest().iter().map(|byte| format!("{byte:02x}")).collect(),
                context: shard.context(),
                running,
                waiting,
                blocks,
                blocks_free,
            };
            Some((name.clone(), status))
        });
        let upstreams = self.lasting.upstreams.present().into_iter().map(|(name, upstream)| {
            let url = upstream.config().url.to_string();
            (name, UpstreamStatus { state: upstream.state(), url, in_flight: upstream.in_flight() })
        });
        let tenants = config.tenants.keys().map(|name| {
            let (requests, tokens) = self.lasting.accounts.in_flight(name);
            (name.clone(), TenantStatus { requests, tokens })
        });
        let models = config.models.iter().map(|(name, model)| {
            let variants = model.variants.iter().map(|(name, variant)| (name.clone(), variant.backends.to_vec()));
            (name.clone(), variants.collect())
        });
        Status {
            version: env!("CARGO_PKG_VERSION"),
            uptime_seconds: self.lasting.clock.unix().saturating_sub(self.started).as_secs(),
            draining: self.draining.load(Relaxed),
            config: ConfigStatus { version: config.version, since, file: self.file.as_ref().map(|file| file.display().to_string()) },
            shards: shards.collect(),
            upstreams: upstreams.collect(),
            models: models.collect(),
            tenants: tenants.collect(),
        }
    }
}
