//! `paceline model`, `paceline data` and `paceline bench`.

use serde_json::Value;

use crate::support::paceline;

fn json(words: &str) -> Value {
    let ran = paceline(words);
    assert_eq!(ran.code, 0, "{words}: {}", ran.stderr);
    serde_json::from_str(&ran.stdout).expect("one JSON document")
}

#[test]
fn models_have_the_parameters_that_their_descriptions_promise() {
    for (model, parameters) in
        [("mlp", 235_146), ("lenet", 1_663_370), ("resnet20", 272_474), ("resnet32", 466_906)]
    {
        assert_eq!(json(&format!("model show {model} --json"))["parameters"], parameters, "{model}");
    }
    let large = json("model show resnet50 --classes 1000 --json");
    assert_eq!(large["parameters"], 25_557_032);
    // He et al. count 3.8 billion multiply-adds, with the stride on the first convolution of a block.
    assert_eq!(large["forward_flops_per_sample"].as_u64().unwrap() / 2 / 1_000_000, 4_089);
    let listed = json("model list --json");
    assert!(listed.as_array().unwrap().iter().any(|m| m["name"] == "softmax"));
}

#[test]
fn model_show_counts_flops_as_the_contract_does() {
    let shown = json("model show mlp --json");
    // 2 × multiply-adds; backward twice forward, less the first layer's input gradient.
    let macs = [784 * 256, 256 * 128, 128 * 10];
    let total: u64 = macs.iter().sum();
    assert_eq!(shown["forward_flops_per_sample"], 2 * total);
    assert_eq!(shown["training_flops_per_sample"], 6 * total - 2 * macs[0]);
    assert_eq!(json("model show mlp --data digits --json")["input"], serde_json::json!([8, 8, 1]));
    assert_eq!(paceline("model show lenet --input 1x1x1").code, 3);
    assert_eq!(paceline("model show lenet --input 5").code, 2);
}

#[test]
fn bench_compute_prints_the_fields_of_the_contract() {
    let measured = json("bench compute --model softmax --batch 8 --threads 1 --seconds 0.05 --json");
    for field in ["model", "batch", "threads", "samples_per_s", "gflops", "peak_gflops", "fraction_of_peak"] {
        assert!(measured.get(field).is_some(), "{field} is missing in {measured}");
    }
    assert!(measured["samples_per_s"].as_f64().unwrap() > 0.0);
}

#[test]
fn bench_allreduce_explains_where_its_time_goes() {
    let words = "bench allreduce --workers 2 --sizes 4KiB,1MiB --seconds 0.05 --explain";
    for (transport, copies, checksums) in [("tcp", 2.0, 2.0), ("shm", 0.0, 0.0), ("inproc", 1.0, 0.0)] {
        let told = json(&format!("{words} --transport {transport} --json"));
        assert_eq!((&told["strategy"], &told["workers"]), (&"auto".into(), &2.into()));
        let rows = told["results"].as_array().unwrap();
        assert_eq!(
            rows.iter().map(|row| row["bytes"].as_u64().unwrap()).collect::<Vec<_>>(),
            [4096, 1 << 20]
        );
        for row in rows {
            let figure = |name: &str| row[name].as_f64().unwrap_or_else(|| panic!("{name}: {row}"));
            // Of two workers each receives one half to add it and the other one to take it in.
            assert_eq!(figure("moved_bytes"), figure("bytes"), "{row}");
            assert!(figure("summing_s") > 0.0 && figure("taking_in_s") > 0.0, "{row}");
            for rate in ["copy_bytes_per_s", "add_bytes_per_s", "checksum_bytes_per_s"] {
                assert!(figure(rate) > 0.0, "{rate}: {row}");
            }
            assert_eq!(figure("copying_s") > 0.0, copies > 0.0, "{transport}: {row}");
            assert_eq!(figure("checksums_s") > 0.0, checksums > 0.0, "{transport}: {row}");
        }
        let text = paceline(&format!("{words} --transport {transport}")).stdout;
        let says = format!("({copies} copies and {checksums} checksums of each byte, both ends together)");
        assert!(text.contains(&says) && text.contains("measured: ") && text.contains("computed: "), "{text}");
    }
}

#[test]
fn bench_overhead_compares_pairs_by_throughput_and_cpu_time() {
    let measured = json("bench overhead --pairs 2 --steps 20 --data digits --json --quiet");
    for field in ["loss_fraction", "loss_fraction_upper95", "cpu_fraction", "cpu_fraction_upper95"] {
        assert!(measured[field].is_f64(), "{field}: {measured}");
    }
    let pairs = measured["pairs"].as_array().unwrap();
    assert_eq!(pairs.len(), 2);
    for side in ["recorded", "unrecorded"] {
        assert!(pairs.iter().all(|pair| pair[side]["cpu_s"].as_f64().unwrap() > 0.0), "{measured}");
    }
}

#[test]
fn datasets_are_listed_with_whether_they_are_here() {
    let rows = json("data --json --data-dir /nonexistent");
    let find = |name: &str| rows.as_array().unwrap().iter().find(|r| r["name"] == name).unwrap().clone();
    assert_eq!(find("digits")["available"], true);
    assert_eq!(find("mnist")["available"], false);
}

/// The numbers at a path in every element of an array.
fn each(array: &Value, path: &str) -> Vec<f64> {
    let number = |v: &Value| v.pointer(path).and_then(Value::as_f64);
    let all = array.as_array().unwrap().iter().map(|v| number(v).unwrap_or_else(|| panic!("{path} in {v}")));
    all.collect()
}

#[test]
fn bench_channels_measures_every_transport_and_keeps_every_repeat() {
    let measured = json("bench channels --sizes 64,8KiB --repeats 2 --seconds 0.01 --seed 3 --json");
    for field in ["cpu", "cores", "kernel"] {
        assert!(measured["machine"].get(field).is_some(), "{field} is missing");
    }
    assert!(measured["load_average"].as_f64().unwrap() >= 0.0);
    let points = measured["points"].as_array().unwrap();
    let names: Vec<_> = paceline_wire::TRANSPORTS.iter().map(|kind| kind.name).collect();
    assert_eq!(points.len(), names.len() * 2);
    for name in names {
        assert_eq!(points.iter().filter(|p| p["transport"] == name).count(), 2, "{name}");
    }
    let mut order = Vec::new();
    for point in points {
        let repeats = &point["repeats"];
        assert_eq!(repeats.as_array().unwrap().len(), 2);
        order.extend(each(repeats, "/order"));
        // What one side sends the other receives, and a message is of the size that was asked for.
        let (sent, received) = (each(repeats, "/sent_bytes"), each(repeats, "/received_bytes"));
        assert_eq!(sent, received);
        for (messages, bytes) in each(repeats, "/messages").iter().zip(&sent) {
            assert_eq!(messages * point["bytes"].as_f64().unwrap(), *bytes);
        }
        assert!(each(repeats, "/round_trips").iter().all(|n| *n >= 1.0));
        for figure in ["/latency_s/median", "/bandwidth_bytes_per_s/median"] {
            assert!(point.pointer(figure).and_then(Value::as_f64).unwrap() > 0.0, "{figure}");
        }
        let latency = ["p5", "median", "p95"].map(|q| point["latency_s"][q].as_f64().unwrap());
        assert!(latency[0] <= latency[1] && latency[1] <= latency[2], "{latency:?}");
    }
    order.sort_by(f64::total_cmp);
    assert_eq!(order, (0..points.len() * 2).map(|i| i as f64).collect::<Vec<_>>(), "each once");
}

#[test]
fn bench_channels_has_pairs_at_once_buffers_and_payloads_of_the_mean_that_was_asked_for() {
    let plot = format!("{}/channels.svg", env!("CARGO_TARGET_TMPDIR"));
    let measured = json(&format!(
        "bench channels --transport uds --buffers default,64KiB --payload uniform,random,skewed --sizes 4KiB \
         --pairs 2 --repeats 1 --seconds 0.01 --json --plot {plot}"
    ));
    let points = measured["points"].as_array().unwrap();
    assert_eq!(points.len(), 6);
    for point in points {
        let sizes: Vec<u64> =
            point["sizes_bytes"].as_array().unwrap().iter().map(|s| s.as_u64().unwrap()).collect();
        assert_eq!(sizes.iter().sum::<u64>(), 4096 * sizes.len() as u64, "{sizes:?}");
        assert_eq!(sizes.len() > 1, point["payload"] != "uniform", "{sizes:?}");
        let sent = point["repeats"][0]["sent_bytes"].as_u64().unwrap();
        assert_eq!(sent % (4096 * sizes.len() as u64), 0, "whole rounds of sizes: {sent}");
        assert_eq!(point["repeats"][0]["messages"].as_u64().unwrap() * 4096, sent);
    }
    assert!(
        points.iter().any(|p| p["buffer_bytes"] == 65536)
            && points.iter().any(|p| p["buffer_bytes"].is_null())
    );
    let svg = std::fs::read_to_string(plot).unwrap();
    assert!(svg.starts_with("<svg") && svg.contains("uds") && svg.contains("n = 1"), "{svg}");
}

#[test]
fn what_has_no_buffer_is_left_out_and_the_reason_said() {
    let ran = paceline("bench channels --buffers 64KiB --sizes 64 --repeats 1 --seconds 0.01 --json");
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let measured: Value = serde_json::from_str(&ran.stdout).unwrap();
    let points = measured["points"].as_array().unwrap();
    assert!(points.iter().all(|p| p["transport"] != "inproc") && points.len() >= 3);
    assert!(measured["left_out"][0].as_str().unwrap().contains("inproc has no buffer"), "{measured}");
    assert!(ran.stderr.contains("left out: inproc has no buffer"), "{}", ran.stderr);
}

#[test]
fn bench_ps_counts_every_push_of_every_worker() {
    let measured = json(
        "bench ps --transport inproc,tcp --workers 1,3 --servers 2 --sizes 40KiB --payload uniform,skewed \
         --sync bsp,asp --repeats 2 --seconds 0.005 --json",
    );
    let points = measured["points"].as_array().unwrap();
    assert_eq!(points.len(), 16);
    for point in points {
        let numbers = |field: &str| point[field].as_u64().unwrap();
        let (workers, servers, bytes) = (numbers("workers"), numbers("servers"), numbers("bytes"));
        assert_eq!((servers, bytes), (2, 40960));
        let buckets: Vec<_> =
            point["buckets_bytes"].as_array().unwrap().iter().map(|b| b.as_u64().unwrap()).collect();
        assert_eq!((buckets.len(), buckets.iter().sum::<u64>()), (8, bytes), "lenet has 8 tensors");
        // A bucket that lies on both servers takes two messages.
        assert!((8..=9).contains(&numbers("messages_per_push")), "{point}");
        let totals: Vec<u64> = point["repeats"]
            .as_array()
            .unwrap()
            .iter()
            .map(|repeat| {
                let rounds: Vec<u64> =
                    repeat["rounds"].as_array().unwrap().iter().map(|r| r.as_u64().unwrap()).collect();
                assert_eq!(rounds.len() as u64, workers);
                if point["sync"] == "bsp" {
                    assert!(rounds.iter().all(|r| *r == rounds[0] && *r >= 5), "{rounds:?}");
                }
                let served = repeat["servers"].as_array().unwrap();
                assert_eq!(served.len(), 2);
                // The servers together have sent each round's parameters, headers and untimed rounds besides.
                let sent: u64 = served.iter().map(|s| s["sent_bytes"].as_u64().unwrap()).sum();
                assert!(sent >= rounds.iter().sum::<u64>() * bytes, "{sent} in {rounds:?}");
                rounds.iter().sum()
            })
            .collect();
        assert_eq!(totals.len(), 2);
        assert!(point["pushes_and_pulls_per_s"]["median"].as_f64().unwrap() > 0.0);
        assert!(point["server_cpu"]["median"].as_f64().unwrap() > 0.0);
    }
}

#[test]
fn measurements_that_cannot_be_are_refused_with_what_is_valid() {
    for (words, code, reason) in [
        ("channels --transport inproc --buffers 64KiB", 3, "valid with tcp, uds, shm"),
        ("channels --transport tcp --buffers 100", 3, "between 4KiB and 1GiB"),
        ("channels --buffers 2GiB", 3, "between 4KiB and 1GiB"),
        ("channels --buffers some", 2, "`default`, or a positive number of bytes"),
        ("channels --sizes 0", 2, "a positive number of bytes"),
        ("channels --sizes 6", 2, "a multiple of 4"),
        ("channels --payload heavy", 2, "uniform, random, skewed"),
        ("channels --transport pigeon", 2, "tcp, uds, shm"),
        ("channels --pairs 0", 2, "1..=128"),
        ("channels --repeats 0", 2, "1..=1000"),
        ("channels --model alexnet", 2, "lenet"),
        ("channels --plot /nonexistent/plot.svg", 5, "/nonexistent/plot.svg"),
        ("ps --servers 0", 2, "1..=256"),
        ("ps --workers 0", 2, "1..=256"),
        ("ps --sync eventually", 2, "bsp, asp"),
        ("ps --sizes 4 --servers 2", 3, "not one parameter for each"),
        ("ps --transport inproc --buffers 64KiB", 3, "inproc has no buffer"),
    ] {
        let ran = paceline(&format!("bench {words}"));
        assert_eq!((ran.code, ran.stdout.as_str()), (code, ""), "{words}: {}", ran.stderr);
        assert!(ran.stderr.contains(reason), "{words}: {}", ran.stderr);
    }
}

#[test]
fn tables_of_measurements_have_a_row_per_point_and_units() {
    let ran = paceline("bench channels --transport inproc --sizes 64,4KiB --repeats 1 --seconds 0.01");
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    // What is too wide for a terminal goes on below.
    let (first, rest) = ran.stdout.split_once("\n\n").unwrap();
    let lines: Vec<_> = first.lines().collect();
    assert_eq!(lines.len(), 4, "{}", ran.stdout);
    assert!(lines[3].contains("4 KiB") && lines[3].contains("B/s"), "{}", ran.stdout);
    let below: Vec<_> = rest.lines().filter(|line| line.starts_with("inproc")).collect();
    assert!(below.len() == 2 && below[1].contains("4 KiB"), "{}", ran.stdout);
    assert!(ran.stdout.lines().all(|line| line.chars().count() <= 80), "{}", ran.stdout);
    let plot = format!("{}/ps.svg", env!("CARGO_TARGET_TMPDIR"));
    let ran = paceline(&format!(
        "bench ps --transport inproc --workers 1,2 --servers 1 --sync bsp --sizes 4KiB --repeats 1 \
         --seconds 0.01 --plot {plot}"
    ));
    let svg = std::fs::read_to_string(plot).unwrap();
    assert!(svg.starts_with("<svg") && svg.contains("inproc, 1 server<"), "{svg}");
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert!(ran.stdout.lines().nth(2).unwrap().starts_with("inproc"), "{}", ran.stdout);
}
