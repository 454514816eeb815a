//! Compiles the gRPC service: in Rust alone, so that nobody needs `protoc`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto");
    let files = protox::compile(["link.proto"], ["proto"])?;
    tonic_prost_build::configure().build_transport(false).bytes(".").compile_fds(files)?;
    Ok(())
}
