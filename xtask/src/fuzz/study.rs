//! A study file: text, as somebody might have written it.

use paceline_plan::study::Study;

pub fn run(input: &[u8]) -> bool {
    let text = String::from_utf8_lossy(input);
    match Study::read("study.toml", "study", &text) {
        Ok(study) => {
            // Its name becomes a folder's: it leads nowhere else.
            assert!(!study.name.is_empty() && !study.name.contains('/') && !study.name.starts_with('.'));
            assert!(!study.objectives.is_empty() && study.repeats <= study.max_repeats);
            study.figures();
            true
        }
        Err(error) => {
            assert!(error.to_string().contains("study.toml"), "{error}");
            false
        }
    }
}

pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let train = "sampler = \"bayes\"\nseed = 1\nrepeats = 2\nmax-repeats = 4\n\
                 constraints = [\"servers <= workers\", \"final_accuracy >= 0.9\"]\n\n\
                 [workload]\ndata = \"digits\"\nepochs = 6\n\n\
                 [axes]\nstrategy = [\"ring-allreduce\", \"ps\"]\nworkers = [2, 4]\n\
                 servers = { values = [1, 2], when = 'strategy = \"ps\"' }\n\
                 lr = { from = 0.01, to = 0.1, count = 3, scale = \"log\" }\n\n\
                 [[objectives]]\nmetric = \"time_to_accuracy_s\"\ngoal = \"minimize\"\n\n\
                 [budget]\nruns = 40\nminutes = 10\n\n[control]\nevery = 8\n";
    let nested =
        format!("constraints = [\"{}\"]\n{}", "(".repeat(5000), &train[train.find('[').unwrap_or(0)..]);
    vec![("train", train.as_bytes().to_vec()), ("stranger-nested", nested.into_bytes())]
}
