//! Sessions that are objects.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, mpsc};

use object_store::ObjectStore;
use object_store::path::Path;
use restage_transport::{
    Abilities, Batch, Cancel, EntryError, Extents, Receipt, Transport, TransportError, check, chunk,
};
use tokio::runtime::{Builder, Runtime};
use tokio::task::AbortHandle;

use crate::error::chain;
use crate::fetch::{self, Fault, Object};
use crate::spans::{Span, spans};
use crate::{Limits, ObjectError, ObjectStoreAt};

/// Threads that talk to the stores: requests wait far more than they compute.
const THREADS: usize = 2;

/// Reads registered objects.
///
/// The length and the version of an object are those of its registration. One that is replaced afterwards gives an
/// error for each entry that wants it, as far as its store tells versions apart, or where the length is another.
#[derive(Debug)]
pub struct ObjectTransport {
    sessions: HashMap<Arc<str>, Object>,
    limits: Limits,
    /// `None` only while it is dropped.
    runtime: Option<Runtime>,
}

impl ObjectTransport {
    /// A transport with no sessions.
    ///
    /// # Errors
    /// [`ObjectError::Threads`] when the system gives no threads.
    pub fn new(limits: Limits) -> Result<Self, ObjectError> {
        let mut builder = Builder::new_multi_thread();
        let builder = builder.worker_threads(THREADS).thread_name("restage-object").enable_all();
        let runtime = builder.build().map_err(ObjectError::Threads)?;
        Ok(ObjectTransport { sessions: HashMap::new(), limits, runtime: Some(runtime) })
    }

    /// Registers the object `name` of a place as `session`, and returns its length in bytes.
    ///
    /// # Errors
    /// [`ObjectError::SessionTaken`], or [`ObjectError::Store`] when the store does not tell the length.
    pub fn register(
        &mut self,
        session: impl Into<Arc<str>>,
        place: &ObjectStoreAt,
        name: &str,
    ) -> Result<u64, ObjectError> {
        let path = place.path(name)?;
        self.register_named(session.into(), Arc::clone(place.store()), path, place.shown(name))
    }

    /// Registers an object of any store as `session`, and returns its length in bytes.
    ///
    /// # Errors
    /// As [`ObjectTransport::register`].
    pub fn register_object(
        &mut self,
        session: impl Into<Arc<str>>,
        store: Arc<dyn ObjectStore>,
        path: Path,
    ) -> Result<u64, ObjectError> {
        let name = path.to_string();
        self.register_named(session.into(), store, path, name)
    }

    fn register_named(
        &mut self,
        session: Arc<str>,
        store: Arc<dyn ObjectStore>,
        path: Path,
        name: String,
    ) -> Result<u64, ObjectError> {
        if self.sessions.contains_key(&session) {
            return Err(ObjectError::SessionTaken { session });
        }
        let deadline = self.limits.deadline;
        let object = self.wait(fetch::head(store, path, name.as_str().into(), deadline));
        let object = object.unwrap_or_else(|| Err(stopped())).map_err(|error| ObjectError::Store {
            object: name,
            reason: chain(&error),
            missing: matches!(error, object_store::Error::NotFound { .. }),
        })?;
        let size = object.size;
        self.sessions.insert(session, object);
        Ok(size)
    }

    /// The first `limit` bytes of a session or, where it is shorter, all of it.
    ///
    /// # Errors
    /// [`ObjectError::Store`] when they do not come.
    pub fn start_of(&self, session: &str, limit: u64) -> Result<Vec<u8>, ObjectError> {
        let Some(object) = self.sessions.get(session) else {
            let (object, reason) = (session.to_owned(), "is not registered".to_owned());
            return Err(ObjectError::Store { object, reason, missing: true });
        };
        let name = object.name.to_string();
        let refuse = |reason: String| ObjectError::Store { object: name.clone(), reason, missing: false };
        let (limit, deadline) = (limit.min(object.size), self.limits.deadline);
        if limit == 0 {
            return Ok(Vec::new());
        }
        let found = self.wait(fetch::range(object.clone(), 0..limit, deadline));
        match found {
            Some(Ok(bytes)) => Ok(bytes),
            Some(Err(Fault::Short { found })) => {
                Err(refuse(format!("{limit} bytes wanted at 0x0, {found} found")))
            }
            Some(Err(Fault::Failed { reason, .. })) => Err(refuse(reason)),
            None => Err(refuse(chain(&stopped()))),
        }
    }

    /// All of an object that is no session, or `None` where there is no such object.
    ///
    /// # Errors
    /// [`ObjectError::TooLong`] when it has more than `limit` bytes, of which none is read then;
    /// [`ObjectError::Store`] when they do not come.
    pub fn whole(
        &self,
        place: &ObjectStoreAt,
        name: &str,
        limit: u64,
    ) -> Result<Option<Vec<u8>>, ObjectError> {
        let (path, deadline) = (place.path(name)?, self.limits.deadline);
        let object = place.shown(name);
        let refuse = |reason: String| ObjectError::Store { object: object.clone(), reason, missing: false };
        let head = self.wait(fetch::head(Arc::clone(place.store()), path, object.as_str().into(), deadline));
        let found = match head.unwrap_or_else(|| Err(stopped())) {
            Err(object_store::Error::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(refuse(chain(&error))),
            Ok(found) => found,
        };
        if found.size > limit {
            return Err(ObjectError::TooLong { object, found: found.size, limit });
        }
        if found.size == 0 {
            return Ok(Some(Vec::new()));
        }
        let size = found.size;
        match self.wait(fetch::range(found, 0..size, deadline)) {
            Some(Ok(bytes)) => Ok(Some(bytes)),
            Some(Err(Fault::Short { found })) => Err(refuse(format!("{size} bytes wanted, {found} found"))),
            Some(Err(Fault::Failed { reason, .. })) => Err(refuse(reason)),
            None => Err(refuse(chain(&stopped()))),
        }
    }

    /// The names of the objects right below a place's prefix, sorted; `None` where the store does not list them, as
    /// over HTTP, or to nobody without the right to.
    ///
    /// # Errors
    /// [`ObjectError::Store`] when the store fails.
    pub fn names(&self, place: &ObjectStoreAt) -> Result<Option<Vec<String>>, ObjectError> {
        use object_store::Error::{NotImplemented, NotSupported, PermissionDenied, Unauthenticated};

        if !place.lists() {
            return Ok(None);
        }
        let (store, prefix) = (Arc::clone(place.store()), place.path("")?);
        let deadline = self.limits.deadline;
        let listing =
            async move { tokio::time::timeout(deadline, store.list_with_delimiter(Some(&prefix))).await };
        let found = self.wait(listing).unwrap_or_else(|| Ok(Err(stopped())));
        let found = found.unwrap_or_else(|_| Err(fetch::late(deadline)));
        match found {
            Ok(found) => {
                let names = found.objects.iter().filter_map(|o| o.location.filename());
                let mut names: Vec<String> = names.map(str::to_owned).collect();
                names.sort_unstable();
                Ok(Some(names))
            }
            Err(
                NotImplemented { .. }
                | NotSupported { .. }
                | PermissionDenied { .. }
                | Unauthenticated { .. },
            ) => Ok(None),
            Err(error) => {
                let (object, reason) = (place.name().to_owned(), chain(&error));
                Err(ObjectError::Store { object, reason, missing: false })
            }
        }
    }

    /// Runs a future to its end on the runtime's threads, wherever this is called from; `None` when it panics.
    fn wait<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> Option<T> {
        let (send, receive) = mpsc::channel();
        self.runtime.as_ref()?.spawn(async move { send.send(work.await) });
        receive.recv().ok()
    }
}

fn stopped() -> object_store::Error {
    object_store::Error::Generic { store: "object", source: "the request ended without an answer".into() }
}

impl Drop for ObjectTransport {
    fn drop(&mut self) {
        // Does not wait, and so may happen inside of another runtime.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Transport for ObjectTransport {
    fn name(&self) -> &'static str {
        "object"
    }

    fn abilities(&self) -> Abilities {
        Abilities { gathers: true }
    }

    /// See [`Transport::read`]. A request is one range; what a store repeats by itself is not counted.
    fn read_with(
        &self,
        batch: &Batch,
        dests: &mut [&mut [u8]],
        cancel: &Cancel,
    ) -> Result<Receipt, TransportError> {
        let extents = |name: &str| self.sessions.get(name).map(|s| Extents::from_zero(s.size));
        let tasks = check(batch, &extents, dests)?.into_tasks();
        let waiting: VecDeque<Span<'_>> = spans(tasks, &self.limits).into();
        let mut reading = Reading::new(self, batch, waiting);
        reading.run(cancel);
        Ok(std::mem::take(&mut reading.receipt))
    }
}

/// A batch while it is read: the calling thread starts requests and places what they bring.
struct Reading<'t, 'd> {
    transport: &'t ObjectTransport,
    batch: &'t Batch,
    waiting: VecDeque<Span<'d>>,
    /// Requests that are open, by their number.
    open: HashMap<u64, (Span<'d>, AbortHandle)>,
    /// Bytes of the open requests.
    in_flight: u64,
    receipt: Receipt,
}

/// Number of the request and what it brought; `None` wakes a read that is cancelled.
type Answer = Option<(u64, Result<Vec<u8>, Fault>)>;

impl<'t, 'd> Reading<'t, 'd> {
    fn new(transport: &'t ObjectTransport, batch: &'t Batch, waiting: VecDeque<Span<'d>>) -> Self {
        let outcomes = batch.entries.iter().map(|e| Ok(e.nest.total().unwrap_or(0))).collect();
        let receipt = Receipt { outcomes, ..Receipt::default() };
        Reading { transport, batch, waiting, open: HashMap::new(), in_flight: 0, receipt }
    }

    fn run(&mut self, cancel: &Cancel) {
        let (send, answers) = mpsc::channel();
        let wake = send.clone();
        // Nobody listens any more where it comes too late.
        let _watch = cancel.watch(move || drop(wake.send(None)));
        loop {
            if cancel.is_cancelled() {
                return self.give_up();
            }
            while self.has_room()
                && let Some(span) = self.waiting.pop_front()
            {
                self.start(span, &send);
            }
            if self.open.is_empty() {
                return;
            }
            // Cannot fail, as a sender is held here; every request sends once, whatever happens to it.
            let Ok(answer) = answers.recv() else { return };
            let Some((number, bytes)) = answer else { continue };
            let Some((span, _)) = self.open.remove(&number) else { continue };
            self.in_flight -= span.range.end - span.range.start;
            self.place(span, bytes);
        }
    }

    fn has_room(&self) -> bool {
        let limits = &self.transport.limits;
        let next = self.waiting.front().map_or(0, |s| s.range.end - s.range.start);
        self.open.is_empty()
            || (self.open.len() < limits.requests && self.in_flight + next <= limits.in_flight)
    }

    fn start(&mut self, span: Span<'d>, send: &mpsc::Sender<Answer>) {
        let ObjectTransport { sessions, limits, runtime } = self.transport;
        let name = &self.batch.sessions[span.session as usize];
        let (Some(object), Some(runtime)) = (sessions.get(name), runtime) else {
            // Not reached: the check has seen the session.
            return self.place(span, Err(Fault::Short { found: 0 }));
        };
        let number = self.receipt.requests;
        self.receipt.requests += 1;
        let work = runtime.spawn(fetch::range(object.clone(), span.range.clone(), limits.deadline));
        let abort = work.abort_handle();
        let send = send.clone();
        runtime.spawn(async move {
            let bytes = work.await.unwrap_or_else(|error| {
                let reason = format!("the request ended without an answer: {error}");
                Err(Fault::Failed { kind: std::io::ErrorKind::Other, reason })
            });
            // Nobody listens once the read was given up.
            send.send(Some((number, bytes))).ok();
        });
        self.in_flight += span.range.end - span.range.start;
        self.open.insert(number, (span, abort));
    }

    /// Puts the bytes of a span where they belong, or the fault with each entry that wanted any of them.
    fn place(&mut self, span: Span<'d>, bytes: Result<Vec<u8>, Fault>) {
        let name = &self.batch.sessions[span.session as usize];
        let (address, length) = (span.range.start, span.range.end - span.range.start);
        for mut task in span.tasks {
            let fault = match &bytes {
                Ok(bytes) if task.gather(bytes, address).is_some() => continue,
                // Not reached: the range covers the tasks of its span.
                Ok(_) => EntryError::ShortRead { session: name.clone(), address, expected: length, found: 0 },
                Err(Fault::Short { found }) => {
                    EntryError::ShortRead { session: name.clone(), address, expected: length, found: *found }
                }
                Err(Fault::Failed { kind, reason }) => EntryError::Io {
                    session: name.clone(),
                    address,
                    length,
                    kind: *kind,
                    reason: reason.clone(),
                },
            };
            self.fail(task.entry(), fault);
        }
    }

    fn fail(&mut self, entry: usize, fault: EntryError) {
        let outcome = &mut self.receipt.outcomes[entry];
        if outcome.is_ok() {
            *outcome = Err(fault);
        }
    }

    /// Notes all that has not come as cancelled.
    fn give_up(&mut self) {
        let open = std::mem::take(&mut self.open).into_values().map(|(span, abort)| {
            abort.abort();
            span
        });
        let left: Vec<Span<'_>> = open.chain(std::mem::take(&mut self.waiting)).collect();
        for task in left.iter().flat_map(|span| &span.tasks) {
            let (entry, fault) = chunk::cancelled(self.batch, task);
            self.fail(entry, fault);
        }
    }
}

impl Drop for Reading<'_, '_> {
    fn drop(&mut self) {
        // What is still open when a read ends early is of no use to anyone.
        self.open.values().for_each(|(_, abort)| abort.abort());
    }
}
