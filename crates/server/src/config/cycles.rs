//! Findings about variables that are made from one another: in a circle, or in too long a row.

use super::reads::mentioned;
use super::scope::{Finding, inside};
use std::collections::HashMap;
use yorozu_conf::{Directive, Tree};
use yorozu_kernel::base::limits;

/// A variable that a block computes when it is asked for.
struct Node<'a> {
    line: &'a Directive,
    /// What it is made from; only those that blocks compute.
    needs: Vec<usize>,
    state: State,
}

/// How far the search came.
#[derive(Clone, Copy)]
enum State {
    Unseen,
    /// It is on the path that is searched.
    OnPath,
    /// The length of the chain that begins with it.
    Deep(usize),
}

/// The circles among `map`, `geo` and `split_clients`, and the longest row of them if it is too long.
pub(super) fn of(tree: &Tree) -> Vec<Finding> {
    let mut nodes = nodes(tree);
    let mut found = Vec::new();
    let mut longest: Option<(usize, usize)> = None;
    for start in 0..nodes.len() {
        search(&mut nodes, start, &mut found);
        if let State::Deep(deep) = nodes[start].state {
            longest = longest.max(Some((deep, start)));
        }
    }
    if let Some((deep, at)) = longest.filter(|(deep, _)| *deep > limits::VARIABLES_DEEP) {
        let text = format!(
            "\"{}\" depends on a chain of {deep} variables, only {} of them are evaluated: the others stay empty, and the error log says \"cycle while evaluating variable\"",
            shown(nodes[at].line),
            limits::VARIABLES_DEEP
        );
        found.push(Finding { text, at: nodes[at].line.at.clone() });
    }
    found
}

/// Looks from one variable as far as it leads. Without recursion: a row may be long.
fn search(nodes: &mut [Node<'_>], start: usize, found: &mut Vec<Finding>) {
    // Each with the number of those it needs that were looked at.
    let mut path = vec![(start, 0)];
    if !matches!(nodes[start].state, State::Unseen) {
        return;
    }
    nodes[start].state = State::OnPath;
    while let Some((at, next)) = path.last_mut() {
        let Some(needed) = nodes[*at].needs.get(*next).copied() else {
            let deep = nodes[*at].needs.iter().map(|needed| match nodes[*needed].state {
                State::Deep(deep) => deep,
                State::Unseen | State::OnPath => 0,
            });
            nodes[*at].state = State::Deep(1 + deep.max().unwrap_or(0));
            path.pop();
            continue;
        };
        *next += 1;
        match nodes[needed].state {
            State::Unseen => {
                nodes[needed].state = State::OnPath;
                path.push((needed, 0));
            }
            State::OnPath => {
                let from = path.iter().position(|(at, _)| *at == needed).unwrap_or(0);
                let circle: Vec<_> = path[from..].iter().map(|(at, _)| *at).collect();
                found.push(finding(nodes, &circle));
            }
            State::Deep(_) => {}
        }
    }
}

fn finding(nodes: &[Node<'_>], circle: &[usize]) -> Finding {
    const SHOWN: usize = 5;
    let first = nodes[circle[0]].line;
    let mut way: Vec<_> = circle.iter().take(SHOWN).map(|at| shown(nodes[*at].line)).collect();
    if circle.len() > SHOWN {
        way.push(format!("({} more)", circle.len() - SHOWN));
    }
    let text = format!(
        "\"{0}\" depends on itself ({1} -> {0}): it stays empty, and the error log says \"cycle while evaluating variable\"",
        shown(first),
        way.join(" -> ")
    );
    Finding { text, at: first.at.clone() }
}

/// The variable that a block defines, as written.
fn shown(line: &Directive) -> String {
    String::from_utf8_lossy(line.args.last().map(|name| &name[..]).unwrap_or_default()).into_owned()
}

fn nodes(tree: &Tree) -> Vec<Node<'_>> {
    let blocks = tree.directives.iter().filter(|line| &line.name[..] == b"http");
    let lines = blocks.flat_map(inside);
    let lines: Vec<_> = lines
        .filter(|line| matches!(&line.name[..], b"map" | b"geo" | b"split_clients"))
        .filter(|line| line.args.last().is_some_and(|name| name.starts_with(b"$")))
        .collect();
    let places: HashMap<String, usize> = (lines.iter().enumerate())
        .map(|(at, line)| (shown(line)[1..].to_ascii_lowercase(), at))
        .collect();
    let needs = |line: &Directive| {
        let subject = &line.args[..line.args.len() - 1];
        // Values in `geo` hold no variables.
        let rows = line.block.iter().flatten().filter(|_| &line.name[..] != b"geo");
        let texts = subject.iter().chain(rows.flat_map(|row| row.args.iter()));
        texts
            .flat_map(|text| mentioned(text))
            .filter_map(|name| places.get(&name).copied())
            .collect()
    };
    lines.iter().map(|line| Node { line, needs: needs(line), state: State::Unseen }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Write as _;
    use yorozu_kernel::config::files::Files;

    fn told(http: &str) -> Vec<String> {
        let source = Files { folder: "/".into() };
        let text = format!("http {{\n{http} }}");
        let directives = yorozu_conf::parse_text(&source, &text).unwrap();
        let found = of(&Tree { directives, files: Vec::new() });
        found.into_iter().map(|finding| finding.to_string()).collect()
    }

    #[test]
    fn cycles_are_reported_once_and_where_they_begin() {
        let table = [
            ("map $a $a { default 1; }", "\"$a\" depends on itself ($a -> $a):"),
            ("map $uri $a { default $A; }", "($a -> $a)"),
            ("map $a $b { default $a; } map $b $a { default 1; }", "($b -> $a -> $b)"),
            ("map x$a $b { volatile; } map ${b}y $a { hostnames; }", "($b -> $a -> $b)"),
            ("map $b $a { } map $c $b { } map $a $c { }", "($a -> $b -> $c -> $a)"),
            ("map $uri $a { ~^/(.*)$ $1$b; } map $uri $b { /x \"-$a-\"; }", "($a -> $b -> $a)"),
            ("geo $b $a { default 1; } map $a $b { }", "($a -> $b -> $a)"),
            ("split_clients \"$uri$b\" $a { * 1; } map $uri $b { x $a; }", "($a -> $b -> $a)"),
            ("split_clients $uri $a { 5% $b; * 1; } map $a $b { }", "($a -> $b -> $a)"),
            (
                "map $b $a { } map $c $b { } map $d $c { } map $e $d { } map $f $e { } map $g $f { } map $a $g { }",
                "($a -> $b -> $c -> $d -> $e -> (2 more) -> $a)",
            ),
        ];
        for (http, way) in table {
            let told = told(http);
            assert_eq!(told.len(), 1, "{http}: {told:?}");
            assert!(told[0].contains(way) && told[0].ends_with(":2"), "{http}: {told:?}");
        }
    }

    #[test]
    fn what_ends_is_not_reported() {
        for http in [
            "map $uri $a { default 1; }",
            "map $uri $a { default $b; } map $uri $b { default $c$c; } map $uri $c { }",
            "map $a_ $a { default $aa; }",
            "geo $a { default $a; }",
            "map $arg_a $a { } server { set $b $b; set $c $a$c; }",
        ] {
            assert_eq!(told(http), [""; 0], "{http}");
        }
    }

    #[test]
    fn a_long_chain_is_reported_and_walked() {
        let row = |count: usize| {
            let mut http = String::new();
            for at in 0..count {
                write!(http, "map $v{} $v{at} {{ }} ", at + 1).unwrap();
            }
            told(&http)
        };
        assert_eq!(row(limits::VARIABLES_DEEP), [""; 0]);
        let told = row(100_000);
        assert_eq!(told.len(), 1);
        assert!(told[0].starts_with("\"$v0\" depends on a chain of 100000 variables"), "{told:?}");
    }
}
