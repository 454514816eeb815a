//! From a request to an answer.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Channel, Full};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::header::{AUTHORIZATION, COOKIE, HOST, HeaderName, HeaderValue, ORIGIN};
use hyper::{Method, Request, Response, StatusCode};
use paceline_analyze::report::{DRAW, STYLE};
use paceline_record::Store;
use tokio::sync::watch;

use crate::access::{Access, Asking, Refused};
use crate::filters::Query;
use crate::pages;

/// The body of an answer.
pub type Body = BoxBody<Bytes, std::convert::Infallible>;

/// What is served.
pub struct Site {
    store: PathBuf,
    access: Access,
    news: watch::Receiver<u64>,
    /// Plotly's script, once.
    plotly: Bytes,
    /// Answers by address while the store stays the same.
    kept: Mutex<(u64, Vec<(String, Bytes)>)>,
    answered: AtomicU64,
    refused: AtomicU64,
    listening: AtomicU64,
}

/// Answers that are kept at most.
const KEPT: usize = 32;

/// Scripts and styles come from here; nothing comes from elsewhere, and nobody may frame the page.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; \
                      connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

impl Site {
    /// Of a store.
    pub fn new(store: PathBuf, access: Access, news: watch::Receiver<u64>) -> Self {
        Self {
            store,
            access,
            news,
            plotly: Bytes::from(paceline_analyze::figure::script()),
            kept: Mutex::default(),
            answered: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            listening: AtomicU64::new(0),
        }
    }
}

fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).boxed()
}

fn response(status: StatusCode, kind: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    for (name, value) in [
        ("content-type", kind),
        ("content-security-policy", POLICY),
        ("x-content-type-options", "nosniff"),
        ("referrer-policy", "no-referrer"),
        ("cross-origin-opener-policy", "same-origin"),
        ("cross-origin-resource-policy", "same-origin"),
        ("cache-control", "no-store"),
    ] {
        headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    response
}

fn plain(status: StatusCode, words: &str) -> Response<Body> {
    response(status, "text/plain; charset=utf-8", full(format!("{words}\n")))
}

/// Answers a request.
pub async fn answer(site: Arc<Site>, request: Request<Incoming>) -> Response<Body> {
    // Nobody has anything to send: bodies are not read.
    let (request, _) = request.into_parts();
    let header = |name: HeaderName| request.headers.get(name).and_then(|v| v.to_str().ok());
    let query = Query::parse(request.uri.query().unwrap_or_default());
    let cookie = header(COOKIE).and_then(|all| all.split(';').find_map(|c| c.trim().strip_prefix("paceline=")));
    let asking = Asking {
        host: header(HOST),
        origin: header(ORIGIN),
        bearer: header(AUTHORIZATION).and_then(|v| v.strip_prefix("Bearer ")),
        cookie,
        query: query.get("token"),
    };
    if let Err(refused) = site.access.check(asking) {
        site.refused.fetch_add(1, Ordering::Relaxed);
        return match refused {
            Refused::Host => plain(StatusCode::MISDIRECTED_REQUEST, "this server goes by another name"),
            Refused::Origin => plain(StatusCode::FORBIDDEN, "another site may not ask"),
            Refused::Token => plain(StatusCode::UNAUTHORIZED, "a token is needed: open the address with ?token=…"),
        };
    }
    if request.method != Method::GET && request.method != Method::HEAD {
        return plain(StatusCode::METHOD_NOT_ALLOWED, "nothing can be changed here");
    }
    site.answered.fetch_add(1, Ordering::Relaxed);
    let path = request.uri.path().to_owned();
    let mut answer = match path.as_str() {
        "/plotly.js" => response(StatusCode::OK, "text/javascript; charset=utf-8", full(site.plotly.clone())),
        "/draw.js" => response(StatusCode::OK, "text/javascript; charset=utf-8", full(DRAW)),
        "/live.js" => response(StatusCode::OK, "text/javascript; charset=utf-8", full(include_str!("assets/live.js"))),
        "/style.css" => response(StatusCode::OK, "text/css; charset=utf-8", full(STYLE)),
        "/events" => events(&site),
        "/metrics" => metrics(&site),
        _ => page(&site, &path, query.clone()).await,
    };
    if site.access.needs_token() && let Some(token) = query.get("token") {
        // A first visit leaves the token in the browser, where scripts cannot read it.
        if let Ok(value) = HeaderValue::from_str(&format!("paceline={token}; HttpOnly; SameSite=Strict; Path=/")) {
            answer.headers_mut().insert("set-cookie", value);
        }
    }
    answer
}

/// Pages are made on threads that may wait for the disk, and kept until the store changes.
async fn page(site: &Arc<Site>, path: &str, query: Query) -> Response<Body> {
    let stamp = *site.news.borrow();
    let key = format!("{path}{}", query.with("", ""));
    {
        let mut kept = site.kept.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if kept.0 != stamp {
            *kept = (stamp, Vec::new());
        }
        if let Some((_, bytes)) = kept.1.iter().find(|(known, _)| *known == key) {
            return response(StatusCode::OK, pages::kind(path), full(bytes.clone()));
        }
    }
    let (folder, of) = (site.store.clone(), path.to_owned());
    let made = tokio::task::spawn_blocking(move || {
        let store = Store::open(&folder).map_err(|e| (StatusCode::SERVICE_UNAVAILABLE, e.to_string()))?;
        pages::make(&store, &of, &query)
    });
    match made.await {
        Ok(Ok(text)) => {
            let bytes = Bytes::from(text);
            let mut kept = site.kept.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            if kept.0 == stamp && kept.1.len() < KEPT {
                kept.1.push((key, bytes.clone()));
            }
            response(StatusCode::OK, pages::kind(path), full(bytes))
        }
        Ok(Err((status, words))) => plain(status, &words),
        Err(_) => plain(StatusCode::INTERNAL_SERVER_ERROR, "the page could not be made"),
    }
}

/// Tells whenever the store has changed, and that it lives every 15 seconds.
fn events(site: &Arc<Site>) -> Response<Body> {
    let (mut sender, body) = Channel::<Bytes>::new(4);
    let (mut news, site) = (site.news.clone(), Arc::clone(site));
    tokio::spawn(async move {
        site.listening.fetch_add(1, Ordering::Relaxed);
        loop {
            let stamp = *news.borrow_and_update();
            let text = Bytes::from(format!("event: changed\ndata: {stamp:016x}\n\n"));
            // Whoever does not take four of these has gone, or is too slow: it connects again if it wants to.
            if sender.try_send(Frame::data(text)).is_err() {
                break;
            }
            let waited = tokio::time::timeout(Duration::from_secs(15), news.changed()).await;
            if matches!(waited, Ok(Err(_))) {
                break;
            }
        }
        site.listening.fetch_sub(1, Ordering::Relaxed);
    });
    response(StatusCode::OK, "text/event-stream", body.boxed())
}

/// For Prometheus.
fn metrics(site: &Site) -> Response<Body> {
    let mut text = String::new();
    for (name, kind, about, value) in [
        ("paceline_http_requests_total", "counter", "requests answered", site.answered.load(Ordering::Relaxed)),
        ("paceline_http_refused_total", "counter", "requests refused", site.refused.load(Ordering::Relaxed)),
        ("paceline_http_listeners", "gauge", "open event streams", site.listening.load(Ordering::Relaxed)),
    ] {
        text += &format!("# HELP {name} {about}\n# TYPE {name} {kind}\n{name} {value}\n");
    }
    if let Ok(runs) = Store::open(&site.store).and_then(|store| store.runs()) {
        text += "# HELP paceline_runs runs in the store by state\n# TYPE paceline_runs gauge\n";
        for state in ["running", "ok", "failed", "lost"] {
            let count = runs.iter().filter(|r| r.state == state).count();
            text += &format!("paceline_runs{{state=\"{state}\"}} {count}\n");
        }
    }
    response(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", full(text))
}
