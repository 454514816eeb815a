//! The package that scripts import travels with the program: names and texts of its files.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::{env, fs};

fn main() {
    let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python/paceline");
    println!("cargo::rerun-if-changed={}", package.display());
    let mut files = Vec::new();
    collect(&package, &mut files);
    files.sort();
    let mut table = String::from("&[\n");
    for file in &files {
        let name = file.strip_prefix(&package).expect("a file of the package").display().to_string();
        println!("cargo::rerun-if-changed={}", file.display());
        writeln!(table, "    ({name:?}, include_str!({:?})),", file.display().to_string()).expect("text");
    }
    table += "]\n";
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it")).join("package.rs");
    fs::write(out, table).expect("the build folder can be written");
}

/// The package's files.
fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("the package lies in python/").flatten() {
        let path = entry.path();
        if path.is_dir() && path.file_name().is_some_and(|name| name != "__pycache__") {
            collect(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "py") {
            files.push(path);
        }
    }
}
