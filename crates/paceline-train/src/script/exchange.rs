//! What the scripts of a plan exchange, and how it lies in flat buffers.

use paceline_attach::{Attached, Gives, Takes};
use paceline_protocol::SINGLE;
use paceline_resolve::TypedPlan;

use crate::source::{Layout, TensorLayout};

/// The name in a layout of the numbers that say which tensors were used; they come before the script's own.
pub const USED_TENSORS: &str = "(used)";

/// What the scripts of a plan hand over and take back.
pub fn script_exchange(plan: &TypedPlan<'_>) -> (Gives, Takes) {
    let apply_server = plan.script.as_ref().is_some_and(|script| script.apply == "server");
    let staged = plan.script.as_ref().is_some_and(|script| script.staged);
    let nobody = plan.document.strategy == SINGLE && !staged || plan.strategy.delegated.is_some();
    match (nobody, &plan.document.averages[..], plan.servers) {
        (true, ..) => (Gives::Nothing, Takes::Nothing),
        (_, "weights", _) => (Gives::Parameters, Takes::Parameters),
        (_, _, 0) => (Gives::Gradients, Takes::Gradients),
        _ if apply_server => (Gives::Gradients, Takes::Parameters),
        _ if plan.sync == "bsp" => (Gives::Gradients, Takes::GradientsFromParameters),
        _ => (Gives::Updates, Takes::Parameters),
    }
}

/// Whether which tensors were used is exchanged with the gradients: a lossy code would make something else of it.
fn tells_used(plan: &TypedPlan<'_>) -> bool {
    let (_, takes) = script_exchange(plan);
    matches!(takes, Takes::Gradients | Takes::GradientsFromParameters) && plan.coder.is_none()
}

/// The flat buffers of a script's tensors: in its own order, behind one number for each that says whether it was used.
/// (Exchanges go from the end to the start, and these are known last.)
pub fn script_layout(plan: &TypedPlan<'_>, attached: &Attached) -> Layout {
    let mut layout = Layout::default();
    let mut push = |name: &str, shape: &[usize]| {
        let range = layout.params..layout.params + shape.iter().product::<usize>();
        layout.params = range.end;
        layout.tensors.push(TensorLayout { name: name.to_owned(), shape: shape.to_vec(), range });
    };
    if tells_used(plan) {
        push(USED_TENSORS, &[attached.tensors.len()]);
    }
    attached.tensors.iter().for_each(|tensor| push(&tensor.name, &tensor.shape));
    layout
}
