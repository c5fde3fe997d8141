//! A store and a prefix in it, from a URL.

use std::sync::Arc;

use object_store::ObjectStore;
use object_store::path::Path;

use crate::ObjectError;
#[cfg(feature = "client")]
use crate::limits::DEADLINE;

/// Times that a store repeats a request that failed on the way.
#[cfg(feature = "client")]
const RETRIES: usize = 4;

/// Time for making a connection.
#[cfg(feature = "client")]
const CONNECT: std::time::Duration = std::time::Duration::from_secs(5);

/// Time without a byte after which a request is given up.
#[cfg(feature = "client")]
const SILENCE: std::time::Duration = std::time::Duration::from_secs(20);

/// A place that objects are named in: `s3://bucket/prefix`, `gs://bucket/prefix`, `az://container/prefix`,
/// `http://host/path`, `https://host/path`.
///
/// Endpoint, region and credentials are taken from the environment variables of the store's own tools: `AWS_*`
/// (`AWS_ENDPOINT_URL` and `AWS_ALLOW_HTTP=true` for a server of one's own, `AWS_SKIP_SIGNATURE=true` for public
/// buckets), `GOOGLE_*`, `AZURE_*`.
#[derive(Debug, Clone)]
pub struct ObjectStoreAt {
    store: Arc<dyn ObjectStore>,
    prefix: Path,
    name: String,
}

impl ObjectStoreAt {
    /// A prefix in a store that was made elsewhere; `name` is how messages call it.
    pub fn new(store: Arc<dyn ObjectStore>, prefix: Path, name: impl Into<String>) -> Self {
        ObjectStoreAt { store, prefix, name: name.into() }
    }

    /// Whether a text starts like the URL of a place of objects, built in or not.
    pub fn is_url(text: &str) -> bool {
        let schemes = ["s3://", "gs://", "az://", "http://", "https://"];
        schemes.iter().any(|scheme| text.starts_with(scheme))
    }

    /// What messages call it: the URL that it was opened from.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The store.
    pub fn store(&self) -> &Arc<dyn ObjectStore> {
        &self.store
    }

    /// How messages call an object named below the prefix.
    pub(crate) fn shown(&self, name: &str) -> String {
        format!("{}/{name}", self.name.trim_end_matches('/'))
    }

    /// Whether the store can list what it has: plain HTTP cannot.
    pub(crate) fn lists(&self) -> bool {
        !self.name.starts_with("http")
    }

    /// The path in the store of an object named below the prefix. The name may have folders; an empty one is the
    /// prefix itself.
    ///
    /// # Errors
    /// [`ObjectError::Url`] when the name is no path: empty parts, `.` or `..`.
    pub fn path(&self, name: &str) -> Result<Path, ObjectError> {
        let name = Path::parse(name)
            .map_err(|error| ObjectError::Url { url: self.shown(name), reason: error.to_string() })?;
        Ok(self.prefix.parts().chain(name.parts()).collect())
    }

    /// Opens a URL with what the environment says of its store. Nothing is asked of the store yet.
    ///
    /// # Errors
    /// As [`ObjectStoreAt::open_with`].
    pub fn open(url: &str) -> Result<Self, ObjectError> {
        Self::open_with(url, &[])
    }

    /// Opens a URL with settings that go before those of the environment: keys and values as `object_store` names
    /// them, `aws_endpoint` for one. Nothing is asked of the store yet.
    ///
    /// # Errors
    /// [`ObjectError::Url`] for what is no such URL, or has a query, a fragment or a password, none of which would
    /// be sent; [`ObjectError::NotBuilt`]; [`ObjectError::Store`] when the store cannot be set up so.
    pub fn open_with(url: &str, settings: &[(&str, &str)]) -> Result<Self, ObjectError> {
        let (scheme, _) = url
            .split_once("://")
            .ok_or_else(|| ObjectError::Url { url: url.to_owned(), reason: "it has no scheme".to_owned() })?;
        let feature = match scheme {
            "s3" if !cfg!(feature = "s3") => "s3",
            "gs" if !cfg!(feature = "gs") => "gs",
            "az" if !cfg!(feature = "az") => "az",
            "http" | "https" if !cfg!(feature = "http") => "http",
            "s3" | "gs" | "az" | "http" | "https" => return opened(scheme, url, settings),
            _ => {
                let reason = format!("scheme {scheme:?} is none of s3, gs, az, http and https");
                return Err(ObjectError::Url { url: url.to_owned(), reason });
            }
        };
        Err(ObjectError::NotBuilt { url: url.to_owned(), feature })
    }
}

#[cfg(not(feature = "client"))]
fn opened(_scheme: &str, url: &str, _settings: &[(&str, &str)]) -> Result<ObjectStoreAt, ObjectError> {
    Err(ObjectError::NotBuilt { url: url.to_owned(), feature: "client" })
}

#[cfg(feature = "client")]
fn opened(scheme: &str, text: &str, settings: &[(&str, &str)]) -> Result<ObjectStoreAt, ObjectError> {
    let refuse = |reason: String| ObjectError::Url { url: text.to_owned(), reason };
    let url = url::Url::parse(text).map_err(|error| refuse(error.to_string()))?;
    if url.host_str().is_none_or(str::is_empty) {
        return Err(refuse("it names no host or bucket".to_owned()));
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err(refuse("a query or a fragment would not be sent".to_owned()));
    }
    if !url.username().is_empty() || url.password().is_some() {
        // Nor repeated in the message.
        let reason = "a user or a password would not be sent".to_owned();
        return Err(ObjectError::Url {
            url: format!("{scheme}://…@{}", url.host_str().unwrap_or_default()),
            reason,
        });
    }
    provide();
    if scheme != "http" && !has_cryptography() {
        let reason = "this processor lacks what the TLS of this build needs (x86-64: AES, PCLMUL, ADX, BMI1, AVX2; \
                      ARM: AES, PMULL, SHA-2)";
        return Err(ObjectError::Store {
            object: text.to_owned(),
            reason: reason.to_owned(),
            missing: false,
        });
    }
    let prefix = Path::from_url_path(url.path()).map_err(|error| refuse(error.to_string()))?;
    let store = build(scheme, &url, settings).map_err(|error| ObjectError::Store {
        object: text.to_owned(),
        reason: crate::error::chain(&error),
        missing: false,
    })?;
    Ok(ObjectStoreAt { store, prefix, name: text.to_owned() })
}

/// Gives rustls its cryptography where the program has not chosen any.
#[cfg(feature = "client")]
fn provide() {
    // Fails only where another one is installed, which then serves.
    rustls_graviola::default_provider().install_default().ok();
}

/// Whether the processor has what graviola needs: on another one it would panic, and not say so to the caller.
#[cfg(feature = "client")]
fn has_cryptography() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        is_x86_feature_detected!("aes")
            && is_x86_feature_detected!("pclmulqdq")
            && is_x86_feature_detected!("adx")
            && is_x86_feature_detected!("bmi1")
            && is_x86_feature_detected!("avx2")
    }
    #[cfg(target_arch = "aarch64")]
    {
        use std::arch::is_aarch64_feature_detected;
        is_aarch64_feature_detected!("aes")
            && is_aarch64_feature_detected!("pmull")
            && is_aarch64_feature_detected!("sha2")
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    {
        false
    }
}

#[cfg(feature = "client")]
fn build(
    scheme: &str,
    url: &url::Url,
    settings: &[(&str, &str)],
) -> object_store::Result<Arc<dyn ObjectStore>> {
    use object_store::{ClientConfigKey, RetryConfig};

    let retry = RetryConfig { max_retries: RETRIES, retry_timeout: DEADLINE, ..RetryConfig::default() };
    let seconds = |time: std::time::Duration| format!("{}s", time.as_secs());
    let times = [
        (ClientConfigKey::ConnectTimeout, seconds(CONNECT)),
        (ClientConfigKey::ReadTimeout, seconds(SILENCE)),
        (ClientConfigKey::Timeout, seconds(DEADLINE)),
    ];
    /// The three clouds are set up alike, and have no trait in common.
    #[cfg(feature = "signing")]
    macro_rules! cloud {
        ($builder:ty, $key:ident) => {{
            let mut builder = <$builder>::from_env().with_url(url.as_str()).with_retry(retry);
            builder = builder.with_crypto_provider(Arc::new(crate::crypto::Crypto));
            for (key, time) in times {
                builder = builder.with_config($key::Client(key), time);
            }
            for (key, value) in settings {
                builder = builder.with_config(key.parse()?, *value);
            }
            Ok(Arc::new(builder.build()?))
        }};
    }
    match scheme {
        #[cfg(feature = "s3")]
        "s3" => {
            use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
            cloud!(AmazonS3Builder, AmazonS3ConfigKey)
        }
        #[cfg(feature = "gs")]
        "gs" => {
            use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
            cloud!(GoogleCloudStorageBuilder, GoogleConfigKey)
        }
        #[cfg(feature = "az")]
        "az" => {
            use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
            cloud!(MicrosoftAzureBuilder, AzureConfigKey)
        }
        #[cfg(feature = "http")]
        "http" | "https" => {
            let mut builder =
                object_store::http::HttpBuilder::new().with_url(&url[..url::Position::BeforePath]);
            for (key, time) in times {
                builder = builder.with_config(key, time);
            }
            let plain = (scheme == "http").to_string();
            builder = builder.with_config(ClientConfigKey::AllowHttp, plain).with_retry(retry);
            for (key, value) in settings {
                builder = builder.with_config(key.parse()?, *value);
            }
            Ok(Arc::new(builder.build()?))
        }
        // Not reached: the schemes that are not built were told apart before.
        _ => Err(object_store::Error::NotSupported { source: format!("scheme {scheme:?}").into() }),
    }
}
