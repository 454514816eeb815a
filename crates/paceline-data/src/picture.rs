//! Images of any size: decoding JPEG and PNG, and cutting a square of a given size out of them.

use std::io::Cursor;

use zune_jpeg::JpegDecoder;
use zune_jpeg::zune_core::bytestream::ZCursor;
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;

/// Most pixels of an image: 64 million are 192 MB. A header that claims more is not believed.
const PIXELS: usize = 64 << 20;
const SIDE: usize = 32 << 10;

/// A decoded image: rows of red, green and blue bytes.
#[derive(Debug)]
pub(crate) struct Picture {
    pub(crate) width: usize,
    pub(crate) height: usize,
    pub(crate) rgb: Vec<u8>,
}

/// Decodes a JPEG or PNG, told apart by the first bytes; an error says what is wrong.
pub(crate) fn decode(bytes: &[u8]) -> Result<Picture, String> {
    if bytes.starts_with(&[0xff, 0xd8]) {
        jpeg(bytes)
    } else if bytes.starts_with(&[0x89, b'P', b'N', b'G']) {
        png(bytes)
    } else {
        Err("neither the beginning of a JPEG nor of a PNG".into())
    }
}

fn within_limits(width: usize, height: usize) -> Result<(), String> {
    let fits = (1..=SIDE).contains(&width) && (1..=SIDE).contains(&height) && width * height <= PIXELS;
    if fits { Ok(()) } else { Err(format!("an image of {width}×{height} pixels (at most 64 million)")) }
}

fn jpeg(bytes: &[u8]) -> Result<Picture, String> {
    // The decoder fills up what is missing; half an image is not what the file's name promises.
    let last = |marker| bytes.windows(2).rposition(|pair| pair == [0xff, marker]);
    if last(0xd9) < last(0xda) {
        return Err("a JPEG that breaks off before its end marker".into());
    }
    let options = DecoderOptions::default()
        .set_max_width(SIDE)
        .set_max_height(SIDE)
        .jpeg_set_out_colorspace(ColorSpace::RGB);
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(bytes), options);
    let failed =
        |error: zune_jpeg::errors::DecodeErrors| format!("a damaged JPEG ({})", error.to_string().trim());
    decoder.decode_headers().map_err(failed)?;
    let (width, height) = decoder.dimensions().ok_or("a JPEG without a size")?;
    within_limits(width, height)?;
    let rgb = decoder.decode().map_err(failed)?;
    if rgb.len() != 3 * width * height {
        return Err(format!("a JPEG of {} bytes for {width}×{height} pixels", rgb.len()));
    }
    Ok(Picture { width, height, rgb })
}

fn png(bytes: &[u8]) -> Result<Picture, String> {
    let failed = |error: png::DecodingError| format!("a damaged PNG ({error})");
    let limits = png::Limits { bytes: 4 * PIXELS };
    let mut decoder = png::Decoder::new_with_limits(Cursor::new(bytes), limits);
    decoder.set_transformations(png::Transformations::normalize_to_color8());
    let mut reader = decoder.read_info().map_err(failed)?;
    let (width, height) = (reader.info().width as usize, reader.info().height as usize);
    within_limits(width, height)?;
    let size = reader.output_buffer_size().ok_or("a PNG beyond memory")?;
    let mut pixels = vec![0; size];
    let frame = reader.next_frame(&mut pixels).map_err(failed)?;
    pixels.truncate(frame.buffer_size());
    // Transparency is left out: the colours beneath it are the image.
    let rgb = match frame.color_type {
        png::ColorType::Rgb => pixels,
        png::ColorType::Rgba => pixels.chunks_exact(4).flat_map(|p| [p[0], p[1], p[2]]).collect(),
        png::ColorType::Grayscale => pixels.iter().flat_map(|&g| [g; 3]).collect(),
        png::ColorType::GrayscaleAlpha => pixels.chunks_exact(2).flat_map(|p| [p[0]; 3]).collect(),
        png::ColorType::Indexed => return Err("a PNG whose palette was not applied".into()),
    };
    if rgb.len() != 3 * width * height {
        return Err(format!("a PNG of {} bytes for {width}×{height} pixels", rgb.len()));
    }
    Ok(Picture { width, height, rgb })
}

/// A part of a picture, in pixels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Crop {
    pub(crate) left: usize,
    pub(crate) top: usize,
    pub(crate) width: usize,
    pub(crate) height: usize,
}

/// Memory that a thread uses again for every image.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    rows: Vec<f32>,
    across: Taps,
    down: Taps,
}

/// Which source pixels make each target pixel, and with which weights.
#[derive(Debug, Default)]
struct Taps {
    /// First source pixel and number of weights of each target pixel.
    spans: Vec<(usize, usize)>,
    weights: Vec<f32>,
}

impl Taps {
    /// Triangles as wide as a target pixel (at least as a source pixel): linear interpolation where a crop
    /// is enlarged, an average where it is made smaller.
    fn set(&mut self, first: usize, length: usize, target: usize) {
        self.spans.clear();
        self.weights.clear();
        let scale = length as f64 / target as f64;
        let radius = scale.max(1.0);
        for i in 0..target {
            let centre = (i as f64 + 0.5) * scale;
            let low = (centre - radius).floor().max(0.0) as usize;
            let high = ((centre + radius).ceil() as usize).min(length);
            let weight = |k: usize| (1.0 - (k as f64 + 0.5 - centre).abs() / radius).max(0.0);
            let sum: f64 = (low..high).map(weight).sum();
            self.weights.extend((low..high).map(|k| (weight(k) / sum) as f32));
            self.spans.push((first + low, high - low));
        }
    }

    fn iter(&self) -> impl Iterator<Item = (usize, &[f32])> {
        let mut rest = &self.weights[..];
        self.spans.iter().map(move |&(first, count)| {
            let (own, others) = rest.split_at(count);
            rest = others;
            (first, own)
        })
    }
}

impl Picture {
    /// Writes the crop, resized to `side` × `side` and mirrored if asked for.
    pub(crate) fn resize(
        &self,
        crop: Crop,
        side: usize,
        mirrored: bool,
        scratch: &mut Scratch,
        out: &mut [u8],
    ) {
        let Scratch { rows, across, down } = scratch;
        across.set(crop.left, crop.width, side);
        down.set(0, crop.height, side);
        let line = side * 3;
        rows.resize(crop.height * line, 0.0);
        for (y, row) in rows.chunks_exact_mut(line).enumerate() {
            let source = &self.rgb[(crop.top + y) * self.width * 3..][..self.width * 3];
            for (pixel, (first, weights)) in row.chunks_exact_mut(3).zip(across.iter()) {
                let mut sums = [0.0; 3];
                for (weight, from) in weights.iter().zip(source[first * 3..].chunks_exact(3)) {
                    (0..3).for_each(|k| sums[k] += weight * f32::from(from[k]));
                }
                pixel.copy_from_slice(&sums);
            }
        }
        for (target, (first, weights)) in out.chunks_exact_mut(line).zip(down.iter()) {
            for (x, byte) in target.iter_mut().enumerate() {
                let column = rows[first * line + x..].iter().step_by(line);
                let sum: f32 = weights.iter().zip(column).map(|(weight, value)| weight * value).sum();
                *byte = (sum + 0.5).clamp(0.0, 255.0) as u8;
            }
            if mirrored {
                for x in 0..side / 2 {
                    let (left, right) = target.split_at_mut((side - 1 - x) * 3);
                    left[x * 3..x * 3 + 3].swap_with_slice(&mut right[..3]);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picture(width: usize, height: usize, at: impl Fn(usize, usize) -> [u8; 3]) -> Picture {
        let rgb = (0..height).flat_map(|y| (0..width).map(move |x| (x, y))).flat_map(|(x, y)| at(x, y));
        Picture { width, height, rgb: rgb.collect() }
    }

    fn resized(picture: &Picture, crop: Crop, side: usize, mirrored: bool) -> Vec<u8> {
        let mut out = vec![0; side * side * 3];
        picture.resize(crop, side, mirrored, &mut Scratch::default(), &mut out);
        out
    }

    #[test]
    fn a_crop_of_the_target_size_is_copied_and_mirrored() {
        let picture = picture(7, 5, |x, y| [x as u8, y as u8, 100]);
        let crop = Crop { left: 2, top: 1, width: 3, height: 3 };
        let plain: Vec<u8> = (0..9).flat_map(|i| [2 + i % 3, 1 + i / 3, 100]).collect();
        assert_eq!(resized(&picture, crop, 3, false), plain);
        let mirror: Vec<u8> = (0..9).flat_map(|i| [4 - i % 3, 1 + i / 3, 100]).collect();
        assert_eq!(resized(&picture, crop, 3, true), mirror);
    }

    #[test]
    fn shrinking_averages_and_enlarging_interpolates() {
        let stripes = picture(64, 64, |x, _| if x % 2 == 0 { [0; 3] } else { [200; 3] });
        let whole = Crop { left: 0, top: 0, width: 64, height: 64 };
        assert!(resized(&stripes, whole, 8, false).iter().all(|&b| b.abs_diff(100) <= 15));
        let slope = picture(4, 4, |x, _| [60 * x as u8; 3]);
        let large = resized(&slope, Crop { left: 0, top: 0, width: 4, height: 4 }, 16, false);
        let row: Vec<u8> = large[..48].chunks_exact(3).map(|p| p[0]).collect();
        assert!(row.is_sorted() && row[0] == 0 && row[15] == 180, "{row:?}");
        assert!(row.windows(2).all(|w| w[1] - w[0] <= 16), "{row:?}");
    }

    #[test]
    fn what_is_no_image_or_claims_too_much_is_refused_without_the_memory() {
        assert!(decode(b"hello").unwrap_err().contains("neither"));
        assert!(decode(&[]).unwrap_err().contains("neither"));
        assert!(decode(&[0xff, 0xd8, 0xff]).unwrap_err().contains("JPEG"));
        // A JPEG header of 65,000 × 65,000 pixels.
        let mut huge = vec![0xff, 0xd8, 0xff, 0xc0, 0, 17, 8, 0xfd, 0xe8, 0xfd, 0xe8, 3];
        huge.extend([1, 0x11, 0, 2, 0x11, 0, 3, 0x11, 0, 0xff, 0xd9]);
        assert!(decode(&huge).is_err());
        let mut png = vec![0x89, b'P', b'N', b'G', 13, 10, 26, 10, 0, 0, 0, 13];
        let mut header = b"IHDR".to_vec();
        header.extend([0, 1, 0, 0, 0, 1, 0, 0, 8, 2, 0, 0, 0]);
        let mut crc = flate2::Crc::new();
        crc.update(&header);
        png.extend(&header);
        png.extend(crc.sum().to_be_bytes());
        png.extend([0, 0, 0, 0, b'I', b'D', b'A', b'T', 0x35, 0xaf, 0x06, 0x1e]);
        assert!(decode(&png).unwrap_err().contains("65536×65536"), "{:?}", decode(&png));
    }
}
