//! What operators can ask of a running server.

use super::house::House;
use crate::admin::{ConfigStatus, Control, Deed, Reloaded, ShardStatus, Status, TenantStatus, UpstreamStatus};
use crate::backend::{Backend, State};
use crate::call::Error;
use crate::config::{Config, Name};
use crate::model::source::shown;
use crate::route::Experiments;
use crate::shard::Shard;
use crate::tenant::{Accounts, Keys};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, PoisonError};

// === impl House ===

impl House {
    /// A shard of the present configuration.
    fn find(&self, name: &Name) -> Result<Arc<Shard>, Error> {
        let present = self.present.load();
        let known = || present.shards.keys().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
        present.shards.get(name).cloned().ok_or_else(|| Error::ShardNotFound { shard: name.to_string(), known: known() })
    }
}

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

    fn shard(&self, name: &Name, deed: Deed) -> Result<State, Error> {
        match deed {
            Deed::Drain => self.find(name)?.drain(),
            Deed::Resume => self.find(name)?.resume(),
            Deed::Reload => {
                self.find(name)?;
                let _alone = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
                let config = Control::config(self);
                self.change(config, Some(name)).map_err(|error| {
                    tracing::error!(shard = %name, "the shard isn't reloaded: {error}");
                    Error::Invalid { param: None, message: error.to_string() }
                })?;
            }
        }
        Ok(self.find(name)?.state())
    }

    fn status(&self) -> Status {
        let config = Control::config(self);
        let since = self.since.lock().unwrap_or_else(PoisonError::into_inner).as_secs();
        let present = self.present.load();
        let shards = present.shards.iter().filter_map(|(name, shard)| {
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
            loading: self.lasting.loads.status(),
            upstreams: upstreams.collect(),
            models: models.collect(),
            tenants: tenants.collect(),
        }
    }
}
