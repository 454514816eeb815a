//! Takes plotly's script out of the crate that ships it, and packs it: it is most of the program otherwise. As a dependency of the build alone, the crate is compiled
//! without optimisation, and the rest of it is no part of the product.

use std::io::Write;

fn main() -> std::io::Result<()> {
    println!("cargo::rerun-if-changed=build.rs");
    let all = plotly::Plot::offline_js_sources();
    // The first of two: the second draws formulas, which no chart here has.
    let first = all.split("</script>").next().unwrap_or_default();
    let script = first.split_once('>').map_or("", |(_, script)| script);
    let path = std::path::Path::new(&std::env::var_os("OUT_DIR").unwrap_or_default()).join("plotly.js.z");
    let mut packed =
        flate2::write::ZlibEncoder::new(std::fs::File::create(path)?, flate2::Compression::best());
    packed.write_all(script.as_bytes())?;
    packed.finish().map(drop)
}
