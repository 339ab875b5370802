//! A small line chart as SVG: panels side by side, logarithmic axes, one legend below.
//!
//! It is self-contained: no script, no font of its own, colours that follow the reader's light or dark setting and are
//! told apart by most eyes. Colour says which group a line belongs to, its stroke which of the group's two it is; the
//! dots of dashed lines are hollow, so that a line below them still shows.

mod scale;

use std::fmt::Write;

use scale::LogScale;

/// Of Okabe and Ito: different in lightness too, and readable on white and on black.
const COLOURS: [&str; 4] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7"];

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 460.0;
const TOP: f64 = 96.0;
const BOTTOM: f64 = 350.0;
/// Left of the lines, for the numbers.
const MARGIN: f64 = 62.0;
/// Right of them.
const GAP: f64 = 24.0;
const LEGEND_STEP: f64 = 140.0;

pub struct Chart {
    pub title: String,
    pub subtitle: String,
    /// The title of the horizontal axis of all panels.
    pub over: &'static str,
    /// One colour each.
    pub groups: Vec<String>,
    /// The legends of solid and of dashed lines.
    pub strokes: [&'static str; 2],
    pub panels: Vec<Panel>,
}

pub struct Panel {
    pub title: String,
    /// How a value of the upright axis is written.
    pub show: fn(f64) -> String,
    pub lines: Vec<PlotLine>,
}

pub struct PlotLine {
    pub name: String,
    pub group: usize,
    pub stroke: Stroke,
    pub points: Vec<(f64, f64)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stroke {
    Solid,
    Dashed,
}

impl Stroke {
    fn class(self) -> &'static str {
        match self {
            Stroke::Solid => "solid",
            Stroke::Dashed => "dashed",
        }
    }
}

const STYLE: &str = "\
    .page{fill:#fff}.ink{fill:#1f2328;font-family:sans-serif}.faint{fill:#59636e}\
    .grid{stroke:#d1d9e0;stroke-width:1}.line{fill:none;stroke-width:2.5;stroke-linejoin:round}\
    .dashed{stroke-dasharray:7 5}.dot{stroke-width:2}.dot.dashed{stroke-dasharray:none;fill:#fff}.key{stroke:#1f2328}\
    @media (prefers-color-scheme: dark){\
    .page,.dot.dashed{fill:#0d1117}.ink{fill:#f0f6fc}.faint{fill:#9198a1}.grid{stroke:#3d444d}.key{stroke:#f0f6fc}}";

/// Writing to a string does not fail, so results are let go throughout.
pub fn svg(chart: &Chart) -> String {
    let mut out = String::new();
    let _ = write!(
        out,
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
         <svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\">\n\
         <title>{}</title>\n<desc>{}</desc>\n<style>{STYLE}</style>\n\
         <rect class=\"page\" width=\"{WIDTH}\" height=\"{HEIGHT}\"/>\n",
        escaped(&chart.title),
        escaped(&chart.subtitle),
    );
    text(&mut out, "ink", (MARGIN, 32.0), (18, "start"), &chart.title);
    text(&mut out, "ink faint", (MARGIN, 54.0), (13, "start"), &chart.subtitle);
    let width = WIDTH / chart.panels.len().max(1) as f64;
    for (place, panel) in chart.panels.iter().enumerate() {
        let left = place as f64 * width;
        draw(&mut out, panel, chart.over, (left + MARGIN, left + width - GAP));
    }
    legend(&mut out, chart);
    out.push_str("</svg>\n");
    out
}

fn draw(out: &mut String, panel: &Panel, over: &str, (left, right): (f64, f64)) {
    let points = || panel.lines.iter().flat_map(|line| &line.points);
    let across = LogScale::over(points().map(|point| point.0), left + 12.0, right - 12.0);
    let up = LogScale::over(points().map(|point| point.1), BOTTOM, TOP).rounded();
    text(out, "ink", (left, TOP - 12.0), (14, "start"), &panel.title);
    for tick in up.ticks() {
        let y = up.at(tick);
        let _ = writeln!(
            out,
            "<path class=\"grid\" d=\"M{} {}H{}\"/>",
            rounded(left),
            rounded(y),
            rounded(right)
        );
        text(out, "ink faint", (left - 8.0, y + 4.0), (12, "end"), &(panel.show)(tick));
    }
    let mut stops: Vec<f64> = points().map(|point| point.0).collect();
    stops.sort_by(f64::total_cmp);
    stops.dedup();
    for stop in stops {
        text(out, "ink faint", (across.at(stop), BOTTOM + 20.0), (12, "middle"), &stop.to_string());
    }
    text(out, "ink faint", (f64::midpoint(left, right), BOTTOM + 40.0), (12, "middle"), over);
    for line in &panel.lines {
        polyline(out, line, |(x, y)| (across.at(x), up.at(y)));
    }
}

fn polyline(out: &mut String, line: &PlotLine, place: impl Fn((f64, f64)) -> (f64, f64)) {
    let places: Vec<(f64, f64)> = line.points.iter().map(|point| place(*point)).collect();
    let points: Vec<String> =
        places.iter().map(|(x, y)| format!("{},{}", rounded(*x), rounded(*y))).collect();
    let (colour, class) = (colour(line.group), line.stroke.class());
    let _ = writeln!(
        out,
        "<polyline class=\"line {class}\" stroke=\"{colour}\" points=\"{}\"><title>{}</title></polyline>",
        points.join(" "),
        escaped(&line.name),
    );
    for (x, y) in places {
        let _ = writeln!(
            out,
            "<circle class=\"dot {class}\" fill=\"{colour}\" stroke=\"{colour}\" cx=\"{}\" cy=\"{}\" r=\"3\"/>",
            rounded(x),
            rounded(y)
        );
    }
}

fn legend(out: &mut String, chart: &Chart) {
    let y = HEIGHT - 34.0;
    let groups = chart.groups.iter().enumerate().map(|(group, name)| (colour(group), "", name.as_str()));
    let [solid, dashed] = chart.strokes;
    let strokes = [("none", "key", solid), ("none", "key dashed", dashed)];
    for (place, (colour, class, name)) in groups.chain(strokes).enumerate() {
        let x = MARGIN + place as f64 * LEGEND_STEP;
        let _ = writeln!(
            out,
            "<path class=\"line {class}\" stroke=\"{colour}\" d=\"M{} {}h30\"/>",
            rounded(x),
            rounded(y - 4.0)
        );
        text(out, "ink", (x + 38.0, y), (13, "start"), name);
    }
}

fn colour(group: usize) -> &'static str {
    COLOURS[group % COLOURS.len()]
}

fn text(out: &mut String, class: &str, (x, y): (f64, f64), (size, anchor): (u8, &str), words: &str) {
    let _ = writeln!(
        out,
        "<text class=\"{class}\" x=\"{}\" y=\"{}\" font-size=\"{size}\" text-anchor=\"{anchor}\">{}</text>",
        rounded(x),
        rounded(y),
        escaped(words),
    );
}

/// A tenth of a pixel is fine enough.
fn rounded(place: f64) -> String {
    format!("{:.1}", place)
}

/// Escapes text for XML.
fn escaped(words: &str) -> String {
    let mut out = String::with_capacity(words.len());
    for letter in words.chars() {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            // XML has no spelling for these at all.
            '\0'..='\x08' | '\x0b' | '\x0c' | '\x0e'..='\x1f' => out.push('\u{fffd}'),
            letter => out.push(letter),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(title: &str, points: Vec<(f64, f64)>) -> Chart {
        let line = |stroke| PlotLine { name: title.to_owned(), group: 0, stroke, points: points.clone() };
        let lines = vec![line(Stroke::Dashed), line(Stroke::Solid)];
        let panel =
            |title: &str, lines| Panel { title: title.into(), show: |value| format!("{value}"), lines };
        Chart {
            title: title.into(),
            subtitle: "both".into(),
            over: "children",
            groups: vec!["a <b>".into()],
            strokes: ["gated", "ungated"],
            panels: vec![panel("left", lines), panel("empty", Vec::new())],
        }
    }

    #[test]
    fn it_is_xml_whatever_the_words() {
        let hostile = "a < b & \"c\" ]]> \u{1} \0 é";
        let drawn = svg(&chart(hostile, vec![(2.0, 0.5), (64.0, 8.0)]));
        let document = roxmltree::Document::parse(&drawn).unwrap();
        let title = document.descendants().find(|node| node.has_tag_name("title")).unwrap();
        assert_eq!(title.text().unwrap(), hostile.replace(['\u{1}', '\0'], "\u{fffd}"));
        let lines = document.descendants().filter(|node| node.has_tag_name("polyline"));
        let points: Vec<usize> =
            lines.map(|line| line.attribute("points").unwrap().split(' ').count()).collect();
        assert_eq!(points, [2, 2]);
    }

    #[test]
    fn every_place_is_on_the_page() {
        let drawn = svg(&chart("t", vec![(2.0, 1e-7), (5.0, 0.0), (64.0, 4_000.0)]));
        let document = roxmltree::Document::parse(&drawn).unwrap();
        let dots: Vec<_> = document.descendants().filter(|node| node.has_tag_name("circle")).collect();
        assert_eq!(dots.len(), 6);
        for dot in dots {
            let place = |name| dot.attribute(name).unwrap().parse::<f64>().unwrap();
            assert!((0.0..=WIDTH).contains(&place("cx")) && (TOP..=BOTTOM).contains(&place("cy")));
        }
    }
}
