use paceline_analyze::explain::{Explanation, Recorded};
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let store = paceline_record::Store::open(std::path::Path::new(&args[1])).unwrap();
    let text = std::fs::read_to_string(&args[2]).unwrap();
    let notrace = args.get(3).is_some();
    let mut tally: std::collections::BTreeMap<String, (u32, u32)> = Default::default();
    for line in text.lines() {
        let f: Vec<&str> = line.split('\t').collect();
        let run = store.find(f[1]).unwrap();
        let mut rec = Recorded::read(&store, &run).unwrap();
        if notrace {
            rec.messages.clear();
            rec.pauses.clear();
        }
        match Explanation::new(&rec) {
            Ok(e) => {
                let c = serde_json::to_value(e.verdict.cause).unwrap().as_str().unwrap().to_owned();
                let bad = match f[0] {
                    "healthy" => !["compute", "exchange", "server"].contains(&c.as_str()),
                    x => x != c,
                };
                let t = tally.entry(f[0].into()).or_default();
                t.1 += 1;
                if !bad {
                    t.0 += 1;
                }
                println!(
                    "{} {} -> {} {:.2} {}",
                    if bad { "BAD" } else { "ok " },
                    f[0],
                    c,
                    e.verdict.share,
                    f[3]
                );
                if bad || args.get(4).is_some() {
                    println!(
                        "      path {:?}\n      wires {:?}",
                        e.path.as_ref().map(|p| (
                            p.compute.iter().map(|c| (c * 100.).round()).collect::<Vec<_>>(),
                            (p.handling * 100.).round(),
                            ("server", (p.server * 100.).round()),
                            ("bytes", (p.bytes * 100.).round()),
                            ("lat", (p.latency * 100.).round()),
                            ("hops", p.hops_per_step)
                        )),
                        e.wires.as_ref().map(|w| (
                            w.bytes_per_s.map(|b| 8e-9 * b),
                            w.latency_s,
                            w.message_bytes,
                            w.messages_per_step,
                            w.pieces
                        ))
                    );
                    println!(
                        "      {}",
                        e.ranks
                            .iter()
                            .map(|r| format!(
                                "{}:{:.1}ms c{:.2} s{:.2} w{:.2} busy{:.2}",
                                r.rank,
                                r.step_s * 1e3,
                                r.compute_s * 1e3,
                                r.send_s * 1e3,
                                r.wait_s * 1e3,
                                r.busy
                            ))
                            .collect::<Vec<_>>()
                            .join(" | ")
                    );
                }
            }
            Err(e) => println!("ERR {} {e} {}", f[0], f[3]),
        }
    }
    println!("{tally:?}");
}
