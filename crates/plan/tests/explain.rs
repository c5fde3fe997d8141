//! What is shown of plans: complete, deterministic, and safe whatever names hold.

use restage_geometry::{Capture, Dtype, Region};
use restage_plan::{
    Catalog, Changed, Column, Difference, Explain, How, Limits, Page, PageMember, Plan, Shard, Source,
    StagingMode, Traffic, Verbose, plan, served,
};

const EVIL: &str = "<script>alert('1')</script>\"\u{1b}[31m\u{202e}&amp;";

fn source(shape: &[i64], dtype: Dtype, shards: &[(&[i64], &[i64], &str, u64)]) -> Source {
    let shard = |(offset, shape, session, addr): &(&[i64], &[i64], &str, u64)| Shard {
        region: Region::new(offset, shape).unwrap(),
        session: (*session).into(),
        addr: *addr,
        digest: None,
    };
    Source { dtype, shape: shape.to_vec(), shards: shards.iter().map(shard).collect() }
}

/// Exact, strided, staged and converted reads, a constant, a hole, a refusal; one of the names is a trap.
fn example(max_descriptors: u64) -> Plan {
    let capture = Capture::new();
    let mut catalog = Catalog::new();
    let rows: [(&[i64], &[i64], &str, u64); 2] =
        [(&[0, 0], &[4, 8], "one", 64), (&[4, 0], &[4, 8], "two", 4096)];
    for (name, at) in [("exact", 0), ("turned", 1 << 16)] {
        let shards = rows.map(|(o, s, session, addr)| (o, s, session, addr + at));
        catalog.insert(name, source(&[8, 8], Dtype::F32, &shards)).unwrap();
    }
    catalog.insert(EVIL, source(&[4], Dtype::F16, &[(&[0], &[4], EVIL, 0)])).unwrap();
    catalog.insert("gap", source(&[4], Dtype::F32, &[(&[0], &[3], "one", 8)])).unwrap();
    let copy = |from: &str, shape: &[i64], to: &str, dtype, to_shape: &[i64]| {
        let found = catalog.get(from).unwrap();
        let from = capture.source(from, found.dtype, shape).unwrap();
        (from, capture.param(to, dtype, to_shape).unwrap())
    };
    let (from, to) = copy("exact", &[8, 8], "p.exact", Dtype::F32, &[8, 8]);
    to.copy_from(&from).unwrap();
    let (from, to) = copy("exact", &[8, 8], "p.strided", Dtype::F32, &[8, 4]);
    to.copy_from(&from.narrow(1, 2, 4).unwrap()).unwrap();
    let (from, to) = copy("turned", &[8, 8], "p.turned", Dtype::F32, &[8, 8]);
    to.copy_from(&from.t().unwrap()).unwrap();
    let (from, to) = copy(EVIL, &[4], EVIL, Dtype::F32, &[4]);
    to.copy_from(&from).unwrap();
    let (from, to) = copy("gap", &[4], "p.gap", Dtype::F32, &[4]);
    to.copy_from(&from).unwrap();
    capture.param("p.zero", Dtype::F32, &[2]).unwrap().fill(&[0; 4]).unwrap();
    capture.param("p.half", Dtype::F32, &[4, 6]).unwrap().narrow(1, 0, 2).unwrap().fill(&[0; 4]).unwrap();
    let limits =
        Limits { max_descriptors, convert: true, staging: StagingMode::RowShards, ..Limits::default() };
    plan(&capture.finish(), &catalog, &limits).unwrap()
}

#[test]
fn every_byte_of_every_parameter_is_accounted_for() {
    for bound in [0, 8, 16, 1 << 20] {
        let plan = example(bound);
        let all = served(&plan);
        assert_eq!(all.len(), plan.params.len());
        for (at, s) in all.iter().enumerate() {
            let bytes: u64 = s.parts.iter().map(|part| part.bytes).sum();
            assert_eq!(
                (s.param, bytes + s.missing),
                (at, plan.coverage[at].bytes),
                "{}",
                plan.params[at].name
            );
            assert_eq!(bytes, plan.coverage[at].covered);
        }
    }
    let plan = example(16);
    let how = |name: &str| {
        let at = plan.params.iter().position(|p| p.name == name).unwrap();
        served(&plan)[at].parts.iter().map(|part| part.how).collect::<Vec<_>>()
    };
    assert_eq!(how("p.turned"), [How::Staged]);
    assert_eq!(how("p.zero"), [How::Constant]);
    assert_eq!(how(EVIL), [How::Converted]);
    assert_eq!(how("p.gap"), []);
}

#[test]
fn the_text_starts_with_what_is_refused_and_cannot_steer_a_terminal() {
    let plan = example(16);
    for text in [Explain(&plan).to_string(), Verbose(&plan).to_string()] {
        assert!(text.starts_with("  refused     gap: "), "{text}");
        assert!(!text.chars().any(|c| c != '\n' && c.is_control()) && !text.contains('\u{202e}'), "{text}");
    }
    let text = Verbose(&plan).to_string();
    for line in [
        "    p.half: 32 of 96 bytes; missing [0..4, 2..6]",
        "    p.gap: 0 of 16 bytes; missing [0..4]",
        "    p.turned F32 [8, 8], 256 bytes",
        "      constant 8 bytes",
    ] {
        assert!(text.lines().any(|l| l == line), "{line}\n{text}");
    }
    // Nothing is cut.
    assert!(!text.contains('…'));
    for param in &plan.params {
        let shown = restage_plan::Name(&param.name).to_string();
        assert!(text.contains(&format!("    {shown} {} ", param.dtype)), "{shown}\n{text}");
    }
}

fn page(plans: &[(&str, &Plan)], traffic: &Traffic) -> String {
    let members = plans.iter().map(|(name, plan)| PageMember::new(*name, plan)).collect();
    Page { title: EVIL, facts: vec![("engine", EVIL.to_owned())], traffic, members }.to_string()
}

/// The tags of a page, each closed in its turn; attributes quoted.
fn well_formed(html: &str) {
    const VOID: [&str; 2] = ["meta", "!DOCTYPE"];
    let style = html.find("<style>").unwrap()..html.find("</style>").unwrap();
    let body = format!("{}{}", &html[..style.start + 7], &html[style.end..]);
    let mut open: Vec<&str> = Vec::new();
    let mut rest = body.as_str();
    while let Some(at) = rest.find('<') {
        assert!(!rest[..at].contains('>'), "{}", &rest[..at]);
        let end = at + rest[at..].find('>').unwrap();
        let tag = &rest[at + 1..end];
        let name = tag.split([' ', '\n']).next().unwrap();
        match name.strip_prefix('/') {
            Some(name) => assert_eq!(open.pop(), Some(name), "{tag}"),
            None if VOID.contains(&name) => {}
            None => open.push(name),
        }
        assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
        for attribute in tag.split('"').step_by(2).skip(1) {
            assert!(attribute.is_empty() || attribute.starts_with(' '), "{tag}");
        }
        rest = &rest[end + 1..];
    }
    assert!(open.is_empty(), "{open:?}");
    // An ampersand starts an entity.
    for (at, _) in body.match_indices('&') {
        let entity = &body[at..body.len().min(at + 6)];
        assert!(
            ["&amp;", "&lt;", "&gt;", "&quot;", "&#39;"].iter().any(|e| entity.starts_with(e)),
            "{entity}"
        );
    }
}

#[test]
fn pages_are_well_formed_and_self_contained_whatever_names_hold() {
    let (a, b) = (example(16), example(0));
    for plans in [&[("", &a)][..], &[("tp0", &a), (EVIL, &b)]] {
        let traffic = Traffic::from_columns(plans.iter().map(|(name, plan)| Column::new(*name, plan)));
        let html = page(plans, &traffic);
        well_formed(&html);
        assert_eq!(html, page(plans, &traffic));
        for fetches in
            ["<script", "<link", "<img", "http:", "https:", "@import", "url(", "src=", "\u{1b}", "\u{202e}"]
        {
            assert!(!html.contains(fetches), "{fetches}");
        }
        // Refusals first.
        let at = |text: &str| html.find(text).unwrap_or_else(|| panic!("{text}"));
        assert!(at("lie in no shard") < at("<h2>Totals") && at("<h2>Totals") < at("class=\"heat\""));
        assert!(html.contains("[0..4, 2..6]") && html.contains("prefers-color-scheme: dark"));
    }
}

/// A column of so many sessions.
fn column(rank: usize, sessions: usize) -> Column {
    let one = |s: usize| (format!("session{s:05}").into(), (s as u64 + 1) * (rank as u64 + 1) * 1000, 1);
    Column { rank: format!("tp{rank}"), sessions: (0..sessions).map(one).collect() }
}

#[test]
fn large_matrices_are_shown_in_blocks() {
    for (sessions, ranks, rows, columns) in
        [(64, 32, 64, 32), (1000, 32, 63, 32), (3, 200, 3, 29), (0, 0, 0, 0)]
    {
        let traffic = Traffic::from_columns((0..ranks).map(|r| column(r, sessions)));
        let members = Vec::new();
        let html = Page { title: "x", facts: Vec::new(), traffic: &traffic, members }.to_string();
        well_formed(&html);
        assert_eq!(html.matches("<td class=\"h").count(), rows * columns, "{sessions} x {ranks}");
        assert!(html.len() < 2 << 20, "{}", html.len());
    }
    // The largest numbers stay numbers.
    let most = Column {
        rank: "r".into(),
        sessions: vec![("a".into(), u64::MAX, u64::MAX), ("b".into(), u64::MAX, 1)],
    };
    let traffic = Traffic::from_columns([most.clone(), most]);
    well_formed(&page(&[], &traffic));
}

#[test]
fn differences_are_those_of_the_plans() {
    let (a, b) = (example(16), example(1 << 20));
    assert!(Difference::between(&a, &a).is_empty());
    assert_eq!(Difference::between(&a, &a).to_string(), "");
    let d = Difference::between(&a, &b);
    assert!(!d.is_empty());
    let turned = d.params.iter().find(|p| p.name == "p.turned").unwrap();
    let lines = |side: &Option<restage_plan::ParamSide>| side.clone().unwrap().served.join("\n");
    assert!(lines(&turned.before).starts_with("staged") && lines(&turned.after).starts_with("strided"));
    // The other way round.
    let back = Difference::between(&b, &a);
    let turn = |list: &[Changed<u64>]| -> Vec<Changed<u64>> {
        list.iter().cloned().map(|c| Changed { before: c.after, after: c.before, ..c }).collect()
    };
    assert_eq!(turn(&d.totals), back.totals);
    // Another address is told, though the amounts are the same.
    let mut moved = a.clone();
    let at = moved.segments.iter().position(|s| s.target == restage_plan::Target::Param(1)).unwrap();
    moved.segments[at].nest.src += 4;
    let d = Difference::between(&a, &moved);
    assert_eq!((d.params.len(), d.totals.len()), (1, 0));
    assert!(d.to_string().contains("the same amounts from other places"), "{d}");
}

#[test]
fn a_part_of_a_plan_is_what_serves_its_parameters() {
    for bound in [0, 16, 1 << 20] {
        let whole = example(bound);
        let all = whole.part(|_| true);
        assert_eq!(
            (&all.segments, &all.stagings, &all.coverage),
            (&whole.segments, &whole.stagings, &whole.coverage)
        );
        assert_eq!(all.counters().bytes, whole.counters().bytes);
        assert_eq!(all.counters().exact_bytes, whole.counters().exact_bytes);
        for (p, param) in whole.params.iter().enumerate() {
            let part = whole.part(|name| name == param.name);
            assert_eq!(
                (&part.params[..], &part.coverage[..]),
                (&[param.clone()][..], &whole.coverage[p..=p])
            );
            // Served in the same way, from the same places.
            let d = Difference::between(&whole, &part);
            assert!(d.params.iter().all(|c| c.name != param.name || c.after.is_none()), "{}", param.name);
            let wanted: usize = usize::from(param.name == "p.gap");
            assert_eq!(part.refused.len(), wanted);
        }
        let none = whole.part(|_| false);
        assert!(none.sessions.is_empty() && none.segments.is_empty() && none.sources.is_empty());
    }
}
