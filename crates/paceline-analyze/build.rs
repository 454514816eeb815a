//! Takes plotly's script out of the crate that ships it. As a dependency of the build alone, the crate is compiled
//! without optimisation, and the rest of it is no part of the product.

fn main() -> std::io::Result<()> {
    println!("cargo::rerun-if-changed=build.rs");
    let all = plotly::Plot::offline_js_sources();
    // The first of two: the second draws formulas, which no chart here has.
    let first = all.split("</script>").next().unwrap_or_default();
    let script = first.split_once('>').map_or("", |(_, script)| script);
    std::fs::write(
        std::path::Path::new(&std::env::var_os("OUT_DIR").unwrap_or_default()).join("plotly.js"),
        script,
    )
}
