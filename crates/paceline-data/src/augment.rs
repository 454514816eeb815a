//! How training varies small images: a crop of the image with a black border, mirrored or not.

use paceline_random::Stream;

/// Crops and mirrors images in memory.
#[derive(Clone, Copy, Debug)]
pub struct Jitter {
    pub shape: [usize; 3],
    /// Pixels that are added on each side before an image of the old size is cut out.
    pub pad: usize,
    /// Whether half of them are mirrored.
    pub mirror: bool,
}

impl Jitter {
    /// Writes a variation of `image` to `out`; `draws` are the sample's own.
    pub fn apply(&self, image: &[u8], draws: Stream, out: &mut [u8]) {
        let [h, w, c] = self.shape;
        let span = 2 * self.pad as u64 + 1;
        // Where the crop begins within the image; negative where it begins within the border.
        let from = |k| draws.below(k, span) as isize - self.pad as isize;
        let (top, left) = (from(0), from(1));
        let mirrored = self.mirror && draws.below(2, 2) == 1;
        // Columns of the crop that lie within the image.
        let (first, last) = ((-left).max(0) as usize, (w as isize - left).clamp(0, w as isize) as usize);
        out.fill(0);
        for y in 0..h {
            let row = y as isize + top;
            if row < 0 || row >= h as isize || first >= last {
                continue;
            }
            let start = (row as usize * w) as isize + first as isize + left;
            let pixels = &image[start as usize * c..][..(last - first) * c];
            let line = &mut out[y * w * c..(y + 1) * w * c];
            if mirrored {
                let places = line[(w - last) * c..(w - first) * c].chunks_exact_mut(c).rev();
                places.zip(pixels.chunks_exact(c)).for_each(|(to, pixel)| to.copy_from_slice(pixel));
            } else {
                line[first * c..last * c].copy_from_slice(pixels);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use paceline_random::Purpose;

    use super::*;

    /// The obvious way: pixel by pixel.
    fn by_pixels(image: &[u8], [h, w, c]: [usize; 3], top: i64, left: i64, mirrored: bool) -> Vec<u8> {
        let mut out = Vec::new();
        for y in 0..h as i64 {
            for x in 0..w as i64 {
                let x = if mirrored { w as i64 - 1 - x } else { x };
                let (row, column) = (y + top, x + left);
                let inside = (0..h as i64).contains(&row) && (0..w as i64).contains(&column);
                for k in 0..c {
                    out.push(if inside { image[(row as usize * w + column as usize) * c + k] } else { 0 });
                }
            }
        }
        out
    }

    #[test]
    fn every_variation_is_a_crop_of_the_padded_image_and_many_occur() {
        let shape = [5, 4, 3];
        let image: Vec<u8> = (1..=60).collect();
        let jitter = Jitter { shape, pad: 2, mirror: true };
        let mut seen = std::collections::BTreeSet::new();
        for sample in 0..500 {
            let mut out = vec![9; 60];
            jitter.apply(&image, Stream::new(sample, Purpose::Augment), &mut out);
            let found = (-2..=2).flat_map(|t| (-2..=2).flat_map(move |l| [(t, l, false), (t, l, true)]));
            let found: Vec<_> =
                found.filter(|&(t, l, mirrored)| by_pixels(&image, shape, t, l, mirrored) == out).collect();
            assert_eq!(found.len(), 1, "sample {sample}");
            seen.extend(found);
        }
        assert_eq!(seen.len(), 50, "all crops occur");
    }
}
