//! Two-level designs are those of pyDOE3 (`fixtures/make_designs.py`).

use paceline_explore::{Design, Resolution};
use serde_json::Value;

fn fixtures() -> Value {
    serde_json::from_str(include_str!("fixtures/designs.json")).unwrap()
}

fn signs(design: &Design) -> Vec<String> {
    design.rows.iter().map(|row| row.iter().map(|high| if *high { '+' } else { '-' }).collect()).collect()
}

fn rows(case: &Value) -> Vec<String> {
    case["rows"].as_array().unwrap().iter().map(|row| row.as_str().unwrap().into()).collect()
}

const RESOLUTIONS: [Resolution; 3] = [Resolution::III, Resolution::IV, Resolution::V];

#[test]
fn designs_of_the_same_generators_are_the_same() {
    let mut compared = 0;
    for case in fixtures()["fracfact"].as_array().unwrap() {
        let generators: Vec<&str> = case["generator"].as_str().unwrap().split(' ').collect();
        for resolution in RESOLUTIONS {
            let design = Design::fractional(generators.len(), resolution).unwrap();
            if design.generators == generators {
                assert_eq!(signs(&design), rows(case), "{generators:?}");
                compared += 1;
            }
        }
    }
    assert!(compared >= 8, "{compared}");
}

#[test]
fn designs_by_resolution_are_the_same_where_theirs_is_smallest_and_has_the_resolution() {
    let (mut compared, mut smaller, mut short) = (0, 0, 0);
    for case in fixtures()["by_resolution"].as_array().unwrap() {
        let number = |key: &str| case[key].as_u64().unwrap();
        let wanted = RESOLUTIONS[number("wanted") as usize - 3];
        let ours = Design::fractional(number("factors") as usize, wanted).unwrap();
        let theirs = rows(case);
        if number("resolution") < number("wanted") {
            // Theirs confounds what was to be kept apart; ours takes the runs that it needs.
            assert!(ours.rows.len() > theirs.len());
            short += 1;
        } else if ours.rows.len() < theirs.len() {
            // They leave out the product of all base axes, which saturated designs need.
            smaller += 1;
        } else {
            assert_eq!(signs(&ours), theirs, "{} {wanted:?}", number("factors"));
            compared += 1;
        }
    }
    assert_eq!((compared, smaller, short), (15, 1, 5));
}

#[test]
fn plackett_burman_designs_are_the_same() {
    for case in fixtures()["plackett_burman"].as_array().unwrap() {
        let factors = case["factors"].as_u64().unwrap() as usize;
        assert_eq!(signs(&Design::plackett_burman(factors).unwrap()), rows(case), "{factors} factors");
    }
}
