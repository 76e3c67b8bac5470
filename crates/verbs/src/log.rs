//! `WEIR_LOG=FILTER` writes a log to stderr, or to the file in `WEIR_LOG_FILE`. Otherwise nothing is printed.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use tracing::level_filters::LevelFilter;
use tracing::subscriber::{Interest, set_global_default};
use tracing::{Event, Metadata, Subscriber, span};
use tracing_subscriber::EnvFilter;
use weir_device::{OnceInherited, descriptors};

/// Initialises the log once, and sends the messages of panics there instead of to the application's stderr.
pub fn start() {
    static STARTED: OnceInherited = OnceInherited::new();
    STARTED.call_once(|| {
        std::panic::set_hook(Box::new(|panic| tracing::error!("{panic}")));
        // An empty filter would let errors pass.
        let filter = std::env::var("WEIR_LOG").ok().filter(|filter| !filter.is_empty());
        let Some(filter) = filter.filter(|_| !weir_device::gains_privileges()) else { return };
        let builder =
            tracing_subscriber::fmt().with_env_filter(EnvFilter::builder().parse_lossy(filter)).with_ansi(false);
        let file = std::env::var_os("WEIR_LOG_FILE")
            .and_then(|path| OpenOptions::new().create(true).append(true).open(path).ok());
        // Fails only if the process has a subscriber already, which then serves as well.
        let _ = match file {
            Some(file) => {
                descriptors::lend(file.as_raw_fd());
                let file = Arc::new(file);
                set_global_default(WhileThreadLives(builder.with_writer(move || LogFile(file.clone())).finish()))
            }
            None => set_global_default(WhileThreadLives(builder.with_writer(|| Stderr).finish())),
        };
    });
}

/// Passes on the events of threads that still have their variables. The formatter needs them, and a thread that has destroyed
/// its own may still call verbs: destructors of global objects run after those of the main thread's variables.
struct WhileThreadLives<S>(S);

struct Alive;

impl Drop for Alive {
    fn drop(&mut self) {}
}

thread_local! {
    static ALIVE: Alive = const { Alive };
}

impl<S: Subscriber> Subscriber for WhileThreadLives<S> {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        self.0.register_callsite(metadata)
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        ALIVE.try_with(|_| ()).is_ok() && self.0.enabled(metadata)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        self.0.max_level_hint()
    }

    fn new_span(&self, span: &span::Attributes<'_>) -> span::Id {
        self.0.new_span(span)
    }

    fn record(&self, span: &span::Id, values: &span::Record<'_>) {
        self.0.record(span, values);
    }

    fn record_follows_from(&self, span: &span::Id, follows: &span::Id) {
        self.0.record_follows_from(span, follows);
    }

    fn event(&self, event: &Event<'_>) {
        if ALIVE.try_with(|_| ()).is_ok() {
            self.0.event(event);
        }
    }

    fn enter(&self, span: &span::Id) {
        self.0.enter(span);
    }

    fn exit(&self, span: &span::Id) {
        self.0.exit(span);
    }
}

/// The file in `WEIR_LOG_FILE`, unless the program has closed it: its number may stand for a file of the program.
struct LogFile(Arc<File>);

impl io::Write for LogFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if descriptors::is_marked(self.0.as_raw_fd()) { (&*self.0).write(bytes) } else { Ok(bytes.len()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Standard error without the lock of Rust's own: a forked child would wait forever for a lock that another thread of
/// its parent held. A line is one write(2), as for a file.
struct Stderr;

impl io::Write for Stderr {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // SAFETY: reads at most `bytes.len()` bytes.
        let written = unsafe { libc::write(libc::STDERR_FILENO, bytes.as_ptr().cast(), bytes.len()) };
        usize::try_from(written).map_err(|_| io::Error::last_os_error())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Logs that a call failed. The panic's own message was logged when it happened.
pub fn panicked() {
    tracing::error!("a call failed with EIO because of the panic above");
}
