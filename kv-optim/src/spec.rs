//! The form in which optimizers travel: a version and named settings, as JSON.

use std::sync::Arc;

use kv_core::Error;
use kv_core::updater::Updater;
use kv_core::wire::UpdaterSpec;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Version of the settings' form. Raised when the meaning of a setting changes, not when one is added.
const VERSION: u32 = 1;

/// Settings that can be checked.
pub(crate) trait Settings: Serialize + DeserializeOwned {
    /// Says which setting makes no sense, what it is, and what it may be.
    fn check(&self) -> Result<(), String>;
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Envelope<T> {
    version: u32,
    settings: T,
}

/// Encodes settings that make sense.
pub(crate) fn encode<T: Settings>(name: &str, settings: &T) -> Result<UpdaterSpec, Error> {
    let fail = |reason: String| Error::Updater { reason: format!("{name}: {reason}") };
    settings.check().map_err(fail)?;
    let settings =
        serde_json::to_string(&Envelope { version: VERSION, settings }).map_err(|error| fail(error.to_string()))?;
    Ok(UpdaterSpec { name: name.to_owned(), settings })
}

/// Decodes settings and checks them. Any text gives an optimizer or a reason.
pub(crate) fn decode<T: Settings + Updater + 'static>(text: &str) -> Result<Arc<dyn Updater>, String> {
    #[derive(Deserialize)]
    struct Version {
        version: u32,
    }
    // The version first: another one may have other fields.
    let Version { version } = serde_json::from_str(text).map_err(|error| error.to_string())?;
    if version != VERSION {
        return Err(format!("settings of version {version}, this server reads version {VERSION}"));
    }
    let Envelope { settings, .. } = serde_json::from_str::<Envelope<T>>(text).map_err(|error| error.to_string())?;
    settings.check()?;
    Ok(Arc::new(settings))
}

/// A finite number in `[min, max)`.
pub(crate) fn in_range(name: &str, value: f64, min: f64, max: f64) -> Result<(), String> {
    if value.is_finite() && value >= min && value < max {
        Ok(())
    } else if max.is_infinite() {
        Err(format!("{name} is {value}, it must be a finite number >= {min}"))
    } else {
        Err(format!("{name} is {value}, it must be in [{min}, {max})"))
    }
}
