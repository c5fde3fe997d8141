//! Ending reads that are under way.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

type Hook = Box<dyn Fn() + Send>;

#[derive(Default)]
struct Shared {
    cancelled: AtomicBool,
    /// What wakes a read that waits, by number; run, and changed, with the lock held.
    hooks: Mutex<Vec<(u64, Hook)>>,
}

impl Shared {
    fn hooks(&self) -> MutexGuard<'_, Vec<(u64, Hook)>> {
        // Each change is one push or removal, which a panic elsewhere does not leave half done.
        self.hooks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A handle that ends the reads it was given to. Its clones are the same handle; once used it stays so.
///
/// ```
/// use restage_nest::Nest;
/// use restage_transport::{Batch, Cancel, Entry, EntryError, MemoryTransport, Transport};
///
/// let mut memory = MemoryTransport::new();
/// memory.register("s", 0, vec![7; 100])?;
/// let entries = vec![Entry { session: 0, dest: 0, nest: Nest::contiguous(0, 0, 100) }];
/// let batch = Batch { sessions: vec!["s".into()], entries };
/// let cancel = Cancel::new();
/// cancel.cancel();
/// let receipt = memory.read_with(&batch, &mut [&mut [0; 100]], &cancel)?;
/// assert!(matches!(receipt.outcomes[0], Err(EntryError::Cancelled { .. })));
/// # Ok::<(), restage_transport::TransportError>(())
/// ```
#[derive(Clone, Default)]
pub struct Cancel(Option<Arc<Shared>>);

impl fmt::Debug for Cancel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match (self.is_cancelled(), self.0.is_some()) {
            (true, _) => "Cancel(used)",
            (false, true) => "Cancel(not used)",
            (false, false) => "Cancel(never)",
        })
    }
}

impl Cancel {
    /// One that is not used yet.
    pub fn new() -> Self {
        Cancel(Some(Arc::default()))
    }

    /// One that cannot be used: [`Cancel::cancel`] does nothing.
    pub const fn never() -> Self {
        Cancel(None)
    }

    /// Ends the reads that were given this handle, and those that will be. Returns before they have ended; a read
    /// has ended when it returns.
    pub fn cancel(&self) {
        let Some(shared) = &self.0 else { return };
        // Before the hooks: whoever is woken, or comes to watch from now on, sees it.
        shared.cancelled.store(true, Ordering::SeqCst);
        shared.hooks().iter().for_each(|(_, hook)| hook());
    }

    /// Whether it was used. Backends look between the pieces of their work.
    pub fn is_cancelled(&self) -> bool {
        self.0.as_ref().is_some_and(|shared| shared.cancelled.load(Ordering::SeqCst))
    }

    /// Has `hook` run by [`Cancel::cancel`] for as long as the watch lives, or at once where the handle was used
    /// already: for backends that wait for something else. A hook that runs while the watch is dropped is waited
    /// for, and none runs afterwards. It must neither block nor use this handle.
    #[must_use = "the hook is forgotten with the watch"]
    pub fn watch(&self, hook: impl Fn() + Send + 'static) -> Watch<'_> {
        let Some(shared) = &self.0 else { return Watch(None) };
        let mut hooks = shared.hooks();
        // With the lock held, or it could be used between the look and the push, and the hook run twice or never.
        if self.is_cancelled() {
            hook();
        }
        let number = hooks.last().map_or(0, |(last, _)| last + 1);
        hooks.push((number, Box::new(hook)));
        Watch(Some((shared, number)))
    }
}

/// See [`Cancel::watch`].
pub struct Watch<'c>(Option<(&'c Shared, u64)>);

impl fmt::Debug for Watch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watch")
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        if let Some((shared, number)) = self.0 {
            shared.hooks().retain(|(n, _)| *n != number);
        }
    }
}
