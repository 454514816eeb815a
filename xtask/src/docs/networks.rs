//! The page of models, and of the layers that networks from files are made of.

use std::fs;

use paceline_nn::layers::Op;
use paceline_nn::models::{MODELS, Output};

use super::markdown::{Page, code};
use crate::process::{Outcome, root};

/// Classes that the table counts with: ten, or a text's characters.
const CLASSES: [usize; 2] = [10, 65];

pub fn page() -> Outcome<String> {
    let mut page = Page::new("Models and layers");
    page.text(
        "What `--model` can name. Figures are for samples of the model's own shape and 10 classes (tokens: 65); \
         `paceline model show MODEL --data NAME` gives them for a dataset, layer by layer.",
    );
    let mut rows = Vec::new();
    for model in MODELS {
        let (input, tokens) = (model.native_input, model.native_input.h == 1 && model.native_input.c == 1);
        let graph = model.build(input, CLASSES[usize::from(tokens)]).map_err(|e| e.to_string())?;
        rows.push(vec![
            code(model.name),
            model.about.to_owned(),
            input.to_string(),
            graph.param_count().to_string(),
            format!("{:.1}", graph.training_flops() as f64 / 1e6),
        ]);
    }
    page.table(&["model", "what it is", "samples", "parameters", "MFLOP per trained sample"], &rows);
    let positions: Vec<_> =
        MODELS.iter().filter(|m| m.output == Output::PerPosition).map(|m| code(m.name)).collect();
    page.text(&format!(
        "A sequence is a sample of height 1: its width is the time. Samples of the shape 1×t×1 are t tokens, and \
         {} tell the next token at every position; of any other sample every model tells the class.",
        positions.join(", ")
    ));
    page.heading("Networks from files");
    page.text(
        "`--model-file FILE` trains (or shows) the network that a file describes: a list of layers in TOML. The \
         plan carries the text, so every worker builds the same network. `examples/models/` has some; one of \
         them:",
    );
    let example = root().join("examples/models/lenet.toml");
    let text = fs::read_to_string(&example).map_err(|e| format!("{}: {e}", example.display()))?;
    page.code(&[text.trim_end().to_owned()]);
    page.text("Settings of every layer:");
    page.items([
        "`kind`: one of the table below.".into(),
        "`name`: for references; else the kind and the layer's number, e.g. `dense3`.".into(),
        "`from`: the name of the layer that it reads, or a list of names; else the layer before it. `input` is \
         the sample."
            .into(),
        "`relu = true`: a ReLU behind it.".into(),
        "`deviation`: lets its weights start normal with this standard deviation, its biases at 0.".into(),
        "`exit`: makes it an output, too, whose loss counts this much beside the last layer's: [early exits](exits.md)."
            .into(),
    ]);
    let rows: Vec<_> = Op::KINDS
        .iter()
        .map(|kind| {
            let settings = kind.settings.split(", ").filter(|s| !s.is_empty()).map(code);
            vec![code(kind.name), kind.about.to_owned(), settings.collect::<Vec<_>>().join(", ")]
        })
        .collect();
    page.table(&["kind", "what it does", "its own settings"], &rows);
    page.text(
        "A size is a whole number or `\"classes\"`, the dataset's number of classes; `kernel`, `stride` and `pad` of \
         `conv2d` may be two, `[vertical, horizontal]`. The network must end with as many outputs as there are \
         classes. What does not fit is refused with line, layer and shapes before anything starts.",
    );
    Ok(page.done())
}
