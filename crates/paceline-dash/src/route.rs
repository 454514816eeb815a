//! From a request to an answer.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{AUTHORIZATION, COOKIE, HOST, HeaderName, HeaderValue, ORIGIN, WWW_AUTHENTICATE};
use hyper::{Method, Request, Response, StatusCode};
use paceline_analyze::report::{DRAW, STYLE};
use tokio::sync::watch;

use crate::access::{Access, AccessRequest, Refused};
use crate::background::BackgroundAnalysis;
use crate::cache::StoreCache;
use crate::live;
use crate::metrics::{self, ServerCounters};
use crate::pages::{self, Page};
use crate::query::Query;

/// The body of an answer.
pub type ResponseBody = BoxBody<Bytes, Infallible>;

pub struct ServerState {
    /// What there is to show.
    pub cache: Arc<StoreCache>,
    /// Who makes what takes long.
    pub background: Arc<BackgroundAnalysis>,
    access: Access,
    news: watch::Receiver<u64>,
    /// Scripts and style by path.
    assets: Vec<(&'static str, &'static str, Bytes)>,
    answered: AtomicU64,
    refused: AtomicU64,
    listening: Arc<AtomicU64>,
}

/// Scripts come from here and nowhere else, none stands in a page, and nobody may frame one. (Plotly sets the style of
/// what it draws.)
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; \
                      img-src 'self' data: blob:; connect-src 'self'; form-action 'self'; base-uri 'none'; \
                      frame-ancestors 'none'";
const SCRIPT: &str = "text/javascript; charset=utf-8";

impl ServerState {
    pub fn new(cache: StoreCache, access: Access) -> std::io::Result<Self> {
        let (cache, background) = (Arc::new(cache), BackgroundAnalysis::start()?);
        let style = format!("{STYLE}\n{}", include_str!("assets/dash.css"));
        let text = |text: &'static str| Bytes::from_static(text.as_bytes());
        let assets = vec![
            ("/assets/plotly.js", SCRIPT, text(&paceline_analyze::figure::SCRIPT)),
            ("/assets/draw.js", SCRIPT, text(DRAW)),
            ("/assets/parallel.js", SCRIPT, text(include_str!("assets/parallel.js"))),
            ("/assets/live.js", SCRIPT, text(include_str!("assets/live.js"))),
            ("/assets/style.css", "text/css; charset=utf-8", Bytes::from(style)),
            ("/favicon.ico", "image/svg+xml", text(include_str!("assets/icon.svg"))),
        ];
        Ok(Self {
            news: live::watch(&cache, &background)?,
            cache,
            background,
            access,
            assets,
            answered: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            listening: Arc::default(),
        })
    }

    fn served(&self) -> ServerCounters {
        ServerCounters {
            answered: self.answered.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
            listening: self.listening.load(Ordering::Relaxed),
            analyses: self.background.made(),
        }
    }
}

fn full(bytes: impl Into<Bytes>) -> ResponseBody {
    Full::new(bytes.into()).boxed()
}

fn response(status: StatusCode, kind: &'static str, body: ResponseBody) -> Response<ResponseBody> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    for (name, value) in [
        ("content-type", kind),
        ("content-security-policy", POLICY),
        ("x-content-type-options", "nosniff"),
        ("x-frame-options", "DENY"),
        ("referrer-policy", "no-referrer"),
        ("cross-origin-opener-policy", "same-origin"),
        ("cross-origin-resource-policy", "same-origin"),
        ("cache-control", "no-store"),
    ] {
        headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    response
}

fn html(page: Page) -> Response<ResponseBody> {
    response(page.status, "text/html; charset=utf-8", full(page.html))
}

pub async fn answer(site: Arc<ServerState>, request: Request<Incoming>) -> Response<ResponseBody> {
    // Nobody has anything to send: bodies are not read.
    let (request, _) = request.into_parts();
    let fetch_site = HeaderName::from_static("sec-fetch-site");
    let fetch_mode = HeaderName::from_static("sec-fetch-mode");
    let ambiguous = [&HOST, &ORIGIN, &AUTHORIZATION, &fetch_site, &fetch_mode].into_iter().any(|name| {
        let values: Vec<_> = request.headers.get_all(name).iter().collect();
        values.len() > 1 || values.iter().any(|value| value.to_str().is_err())
    });
    let header = |name: HeaderName| request.headers.get(name).and_then(|v| v.to_str().ok());
    let query = Query::parse(request.uri.query().unwrap_or_default());
    let own = format!("{}=", site.access.cookie());
    let cookies = request.headers.get_all(COOKIE).iter().filter_map(|v| v.to_str().ok());
    let cookie = cookies.flat_map(|all| all.split(';')).find_map(|c| c.trim().strip_prefix(own.as_str()));
    let asking = AccessRequest {
        target: request.uri.authority().map(|authority| authority.as_str()),
        host: header(HOST),
        origin: header(ORIGIN),
        site: header(fetch_site),
        mode: header(fetch_mode),
        bearer: header(AUTHORIZATION).and_then(bearer),
        cookie,
        query: query.get("token"),
    };
    let allowed = if ambiguous { Err(Refused::Ambiguous) } else { site.access.check(asking) };
    if let Err(refused) = allowed {
        site.refused.fetch_add(1, Ordering::Relaxed);
        let brought = asking.bearer.or(asking.cookie).or(asking.query).is_some();
        let mut answer = html(refusal(refused, request.uri.path(), brought));
        if refused == Refused::Token {
            answer.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        return answer;
    }
    if request.method != Method::GET && request.method != Method::HEAD {
        site.refused.fetch_add(1, Ordering::Relaxed);
        let page = pages::problem(
            StatusCode::METHOD_NOT_ALLOWED,
            "Nothing can be changed here",
            "Only GET and HEAD are answered.",
        );
        let mut answer = html(page);
        answer.headers_mut().insert("allow", HeaderValue::from_static("GET, HEAD"));
        return answer;
    }
    site.answered.fetch_add(1, Ordering::Relaxed);
    let path = request.uri.path().to_owned();
    if site.access.needs_token()
        && let Some(token) = query.get("token")
    {
        return keep_token(&site, &path, &query, token);
    }
    if let Some((_, kind, bytes)) = site.assets.iter().find(|(known, ..)| *known == path) {
        return response(StatusCode::OK, kind, full(bytes.clone()));
    }
    if path == "/events" && request.method == Method::GET {
        site.listening.fetch_add(1, Ordering::Relaxed);
        let listening = Arc::clone(&site.listening);
        let gone = move || {
            listening.fetch_sub(1, Ordering::Relaxed);
        };
        return response(StatusCode::OK, "text/event-stream", live::stream(site.news.clone(), gone).boxed());
    }
    // What reads the store is made on threads that may wait for the disk.
    let made = tokio::task::spawn_blocking(move || match path.as_str() {
        "/metrics" => {
            let text = metrics::text(&site.cache, site.served());
            response(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", full(text))
        }
        "/events" => response(StatusCode::OK, "text/event-stream", full("")),
        path if path.ends_with("/parallel.json") => match pages::parallel(&site, path, &query) {
            Ok(json) => response(StatusCode::OK, "application/json", full(json)),
            Err(page) => html(page),
        },
        path => html(pages::make(&site, path, &query)),
    });
    made.await.unwrap_or_else(|_| {
        let words = "This is a fault of paceline; please report it with the address of the page.";
        html(pages::problem(StatusCode::INTERNAL_SERVER_ERROR, "The page could not be made", words))
    })
}

/// The token in `Authorization: Bearer TOKEN`.
fn bearer(value: &str) -> Option<&str> {
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

fn refusal(refused: Refused, path: &str, brought: bool) -> Page {
    match refused {
        Refused::Ambiguous => pages::problem(
            StatusCode::BAD_REQUEST,
            "The request contradicts itself",
            "Host, Origin, Authorization and Sec-Fetch headers may stand there once, as plain text.",
        ),
        Refused::Host => pages::problem(
            StatusCode::MISDIRECTED_REQUEST,
            "This server goes by another name",
            "It listens on loopback: open it as localhost, or through ssh -L.",
        ),
        Refused::Origin => pages::problem(
            StatusCode::FORBIDDEN,
            "Another site may not ask",
            "Only this server's own pages may ask it for anything.",
        ),
        Refused::Token => pages::sign_in(path, brought),
    }
}

/// A first visit leaves the token in the browser, where scripts cannot read it, and goes on without it in the address.
fn keep_token(site: &ServerState, path: &str, query: &Query, token: &str) -> Response<ResponseBody> {
    let mut answer = response(StatusCode::SEE_OTHER, "text/plain; charset=utf-8", full("go on\n"));
    // One slash: two would lead to another machine.
    let place = format!("/{}{}", path.trim_start_matches('/'), query.with("token", "").address());
    let cookie =
        format!("{}={token}; HttpOnly; SameSite=Strict; Path=/; Max-Age=2592000", site.access.cookie());
    for (name, value) in [("location", place), ("set-cookie", cookie)] {
        if let Ok(value) = HeaderValue::from_str(&value) {
            answer.headers_mut().insert(name, value);
        }
    }
    answer
}
