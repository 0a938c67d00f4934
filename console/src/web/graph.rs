//! Who waits for whom, as a picture. The table below it says the same in words.

use std::collections::BTreeMap;

use lockapi::admin::Waiter;
use maud::{Markup, html};

use crate::output::plain;

/// The most sessions of a picture: of more nobody sees anything.
const MOST: usize = 30;
const BOX: (usize, usize) = (210, 46);
const GAP: (usize, usize) = (120, 18);

#[derive(Debug)]
struct Node {
    label: String,
    detail: String,
    /// How many waits it is away from one that waits for nobody.
    column: usize,
    row: usize,
}

/// A wait: who, for whom, and for what.
type Edge = (usize, usize, String);

#[derive(Debug, Default)]
struct Graph {
    nodes: Vec<Node>,
    edges: Vec<Edge>,
}

fn short(text: &str, most: usize) -> String {
    let text = plain(text);
    if text.chars().count() <= most {
        return text;
    }
    let cut: String = text.chars().take(most - 1).collect();
    cut + "…"
}

/// The application without what the library adds to its name.
pub(super) fn program(application: Option<&str>) -> Option<&str> {
    let name = application.map(|name| name.strip_suffix(" lockapi").unwrap_or(name));
    name.filter(|name| !name.is_empty())
}

impl Graph {
    fn new(waiters: &[Waiter]) -> Self {
        let mut graph = Self::default();
        let mut known = BTreeMap::new();
        for waiter in waiters.iter().filter(|waiter| !waiter.blockers.is_empty()) {
            let who = program(waiter.application.as_deref()).or(waiter.owner.as_deref());
            let detail = waiter.owner.as_deref().or(waiter.username.as_deref());
            let from = graph.node(&mut known, waiter.pid, who, detail);
            for blocker in &waiter.blockers {
                let who = program(blocker.application.as_deref());
                let state = blocker.state.as_deref();
                let to = graph.node(&mut known, Some(blocker.pid), who, state);
                if let (Some(from), Some(to)) = (from, to) {
                    graph.edges.push((from, to, short(&waiter.name, 18)));
                }
            }
        }
        graph.place();
        graph
    }

    fn node(
        &mut self,
        known: &mut BTreeMap<String, usize>,
        pid: Option<i64>,
        who: Option<&str>,
        detail: Option<&str>,
    ) -> Option<usize> {
        let who = who.filter(|who| !who.is_empty()).unwrap_or("a session");
        let name = pid.map_or_else(|| who.to_owned(), |pid| format!("pid {pid}"));
        if let Some(node) = known.get(&name) {
            return Some(*node);
        }
        if self.nodes.len() >= MOST {
            return None;
        }
        let detail = match (pid, detail) {
            (Some(pid), Some(detail)) if !detail.starts_with("pid ") => {
                format!("session {pid}, {detail}")
            }
            (Some(pid), _) => format!("session {pid}"),
            (None, _) => "within its program".to_owned(),
        };
        self.nodes.push(Node {
            label: short(who, 26),
            detail: short(&detail, 32),
            column: 0,
            row: 0,
        });
        known.insert(name, self.nodes.len() - 1);
        Some(self.nodes.len() - 1)
    }

    /// Columns by the length of the way to one that waits for nobody; in a cycle they end.
    fn place(&mut self) {
        for _ in 0..self.nodes.len() {
            let mut moved = false;
            for (from, to, _) in &self.edges {
                let column = (self.nodes[*to].column + 1).min(self.nodes.len());
                if from != to && self.nodes[*from].column < column {
                    self.nodes[*from].column = column;
                    moved = true;
                }
            }
            if !moved {
                break;
            }
        }
        // Of a cycle, the numbers have gaps.
        let mut columns: Vec<usize> = self.nodes.iter().map(|node| node.column).collect();
        columns.sort_unstable();
        columns.dedup();
        let mut rows = vec![0; columns.len()];
        for node in &mut self.nodes {
            let at = columns.iter().position(|column| *column == node.column);
            node.column = at.unwrap_or_default();
            node.row = rows[node.column];
            rows[node.column] += 1;
        }
    }

    fn size(&self) -> (usize, usize) {
        let most = |of: fn(&Node) -> usize| self.nodes.iter().map(of).max().unwrap_or_default() + 1;
        let (columns, rows) = (most(|node| node.column), most(|node| node.row));
        (
            columns * (BOX.0 + GAP.0) - GAP.0 + 4,
            rows * (BOX.1 + GAP.1) - GAP.1 + 4,
        )
    }
}

fn corner(node: &Node) -> (usize, usize) {
    (
        2 + node.column * (BOX.0 + GAP.0),
        2 + node.row * (BOX.1 + GAP.1),
    )
}

/// The picture; nothing where nobody waits.
pub(super) fn graph(waiters: &[Waiter]) -> Markup {
    let graph = Graph::new(waiters);
    if graph.edges.is_empty() {
        return html! {};
    }
    let (width, height) = graph.size();
    let words = format!(
        "{} waits among {} sessions; the table of waits lists them.",
        graph.edges.len(),
        graph.nodes.len()
    );
    html! {
        figure .scroll tabindex="0" role="region" aria-label="Who waits for whom" {
            svg .graph role="img" aria-label=(words) viewBox={ "0 0 " (width) " " (height) } width=(width) height=(height) {
                defs {
                    marker #arrow viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto" {
                        path d="M0 0 L8 4 L0 8 z" {}
                    }
                }
                @for (from, to, lock) in &graph.edges { (edge(&graph.nodes[*from], &graph.nodes[*to], lock)) }
                @for node in &graph.nodes {
                    @let (x, y) = corner(node);
                    g class=(if node.column == 0 { "root" } else { "waits" }) {
                        rect x=(x) y=(y) width=(BOX.0) height=(BOX.1) rx="6" {}
                        text x=(x + 10) y=(y + 19) { (node.label) }
                        text .detail x=(x + 10) y=(y + 36) { (node.detail) }
                    }
                }
            }
            figcaption { "An arrow leads from who waits to who is in the way." }
        }
    }
}

fn edge(from: &Node, to: &Node, lock: &str) -> Markup {
    let ((x1, y1), (x2, y2)) = (corner(from), corner(to));
    let (y1, y2) = (y1 + BOX.1 / 2, y2 + BOX.1 / 2);
    // Back to an earlier column, or, within a cycle, to another side of it.
    let (x1, x2) = if x1 > x2 {
        (x1, x2 + BOX.0)
    } else {
        (x1 + BOX.0, x2)
    };
    let middle = x1.midpoint(x2);
    html! {
        path .edge d={ "M" (x1) " " (y1) " C" (middle) " " (y1) " " (middle) " " (y2) " " (x2) " " (y2) } marker-end="url(#arrow)" {}
        text .lock x=(middle) y=(y1.midpoint(y2).saturating_sub(5)) text-anchor="middle" { (lock) }
    }
}
