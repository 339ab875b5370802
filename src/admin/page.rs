//! The live page: files that are part of the binary and hold no data. Everything that it shows comes from `/events`.

use axum::Router;
use axum::http::header;
use axum::response::IntoResponse;
use axum::routing::get;

/// Nothing is loaded from anywhere else, no text ever becomes markup or a script, and nobody frames the page.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; \
    trusted-types 'none'";

const HTML: &str = "text/html; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";
const TEXT: &str = "text/plain; charset=utf-8";

/// The files of the page: path, type, text.
pub const FILES: &[(&str, &str, &str)] = &[
    ("/", HTML, include_str!("page/index.html")),
    ("/page/page.css", STYLE, include_str!("page/page.css")),
    ("/page/icon.svg", SVG, include_str!("page/icon.svg")),
    ("/page/detail.js", SCRIPT, include_str!("page/detail.js")),
    ("/page/draw.js", SCRIPT, include_str!("page/draw.js")),
    ("/page/fanout.js", SCRIPT, include_str!("page/fanout.js")),
    ("/page/format.js", SCRIPT, include_str!("page/format.js")),
    ("/page/lists.js", SCRIPT, include_str!("page/lists.js")),
    ("/page/main.js", SCRIPT, include_str!("page/main.js")),
    ("/page/model.js", SCRIPT, include_str!("page/model.js")),
    ("/page/money.js", SCRIPT, include_str!("page/money.js")),
    ("/page/place.js", SCRIPT, include_str!("page/place.js")),
    ("/page/save.js", SCRIPT, include_str!("page/save.js")),
    ("/page/stream.js", SCRIPT, include_str!("page/stream.js")),
    ("/page/words.js", SCRIPT, include_str!("page/words.js")),
];

/// What metrics and alerts mean, and what to do about them: the dashboard links to it.
pub const MANUAL: (&str, &str, &str) = ("/manual", TEXT, include_str!("../../dashboards/README.md"));

/// Returns the page with its files, and the manual. They hold no data, and need no token.
pub fn router() -> Router {
    let file = |router: Router, (path, kind, text): &(&'static str, &'static str, &'static str)| {
        let (kind, text) = (*kind, *text);
        let answer = move || async move {
            let head = [
                (header::CONTENT_TYPE, kind),
                (header::CONTENT_SECURITY_POLICY, POLICY),
                (header::CACHE_CONTROL, "no-cache"),
                (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
                (header::REFERRER_POLICY, "no-referrer"),
            ];
            (head, text).into_response()
        };
        router.route(path, get(answer))
    };
    FILES.iter().chain([&MANUAL]).fold(Router::new(), file)
}
