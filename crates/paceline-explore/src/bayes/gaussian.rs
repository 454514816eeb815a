//! A Gaussian process: Matérn-5/2 with one length per axis, and noise; the most probable parameters under weak
//! beliefs about them.

use paceline_plan::{Point, Space};

/// Squared distances per axis: all that the kernel needs to know about a pair of points.
#[derive(Clone, Debug)]
pub struct Features {
    axes: usize,
    /// Per point and axis: place, and whether places are names (1) or numbers (0).
    places: Vec<f64>,
    names: Vec<bool>,
}

/// The place of an axis that is not there: as far from every level as two names are from each other.
const ABSENT: f64 = f64::INFINITY;

impl Features {
    pub fn new<'a>(space: &Space, points: impl IntoIterator<Item = &'a Point>) -> Self {
        let names: Vec<bool> = space.axes().iter().map(|a| a.scale == paceline_plan::Scale::Names).collect();
        let mut places = Vec::new();
        for point in points {
            for (axis, level) in space.axes().iter().zip(&point.0) {
                places.push(match level {
                    None => ABSENT,
                    Some(level) if axis.scale == paceline_plan::Scale::Names => f64::from(*level),
                    Some(level) => axis.position(*level),
                });
            }
        }
        Self { axes: names.len(), places, names }
    }

    pub fn len(&self) -> usize {
        self.places.len() / self.axes
    }

    pub fn select(&self, indices: &[usize]) -> Self {
        let places = indices.iter().flat_map(|i| self.row(*i).iter().copied()).collect();
        Self { places, names: self.names.clone(), ..*self }
    }

    fn row(&self, i: usize) -> &[f64] {
        &self.places[i * self.axes..(i + 1) * self.axes]
    }

    /// Squared distance of two rows, each axis in its own length.
    fn distance(&self, a: &[f64], b: &[f64], inverse: &[f64]) -> f64 {
        (0..a.len()).map(|k| self.squared(k, a[k], b[k]) * inverse[k]).sum()
    }

    fn squared(&self, axis: usize, a: f64, b: f64) -> f64 {
        if a == b {
            0.0
        } else if self.names[axis] || a.is_infinite() || b.is_infinite() {
            1.0
        } else {
            (a - b) * (a - b)
        }
    }
}

/// Logarithms of the kernel's parameters: a length per axis, then the noise's variance (the signal's is 1).
type Parameters = Vec<f64>;

/// What is believed about the parameters: mean and deviation of their logarithms.
const LENGTH: (f64, f64) = (0.3, 1.0);
const NOISE: (f64, f64) = (-6.0, 1.5);
const BOUNDS: ((f64, f64), (f64, f64)) = ((-3.5, 4.0), (-13.0, 0.5));
/// Observations that parameters are fitted to; predictions use all.
const FITTED: usize = 64;
/// Steps of the search from each start, and further ones from the better.
const STEPS: (usize, usize) = (10, 20);

#[derive(Clone, Debug)]
pub struct Gaussian {
    seen: Features,
    parameters: Parameters,
    mean: f64,
    scale: f64,
    /// Lower triangle of the covariance's root.
    root: Vec<f64>,
    weights: Vec<f64>,
}

impl Gaussian {
    pub fn fit(seen: &Features, values: &[f64]) -> Self {
        let (mean, scale) = moments(values);
        let standard: Vec<f64> = values.iter().map(|v| (v - mean) / scale).collect();
        let chosen = spread(&standard, FITTED);
        let part = seen.select(&chosen);
        let targets: Vec<f64> = chosen.iter().map(|i| standard[*i]).collect();
        let parameters = most_probable(&part, &targets);
        Self::with(seen.clone(), parameters, standard, mean, scale)
    }

    /// The same process with further observations, taken at its own mean: so that points that are being run are not
    /// suggested again.
    pub fn condition_on_pending(&self, values: &[f64], further: &Features) -> Self {
        let mut seen = self.seen.clone();
        seen.places.extend(&further.places);
        let mut standard: Vec<f64> = values.iter().map(|v| (v - self.mean) / self.scale).collect();
        standard.extend(self.predict(further).iter().map(|(mean, _)| (mean - self.mean) / self.scale));
        Self::with(seen, self.parameters.clone(), standard, self.mean, self.scale)
    }

    fn with(seen: Features, parameters: Parameters, standard: Vec<f64>, mean: f64, scale: f64) -> Self {
        let n = seen.len();
        let mut root = covariance(&seen, &parameters);
        cholesky(&mut root, n);
        let mut weights = standard;
        forward(&root, n, &mut weights, 1);
        backward(&root, n, &mut weights);
        Self { seen, parameters, mean, scale, root, weights }
    }

    /// Mean and standard deviation (without the noise) at each point.
    pub fn predict(&self, points: &Features) -> Vec<(f64, f64)> {
        let (n, m) = (self.seen.len(), points.len());
        let inverse: Vec<f64> = self.parameters[..self.seen.axes].iter().map(|l| (-2.0 * l).exp()).collect();
        // One row per observation, one column per point: the inner loops run over points.
        let mut cross = vec![0.0; n * m];
        for i in 0..n {
            let a = self.seen.row(i);
            for (j, c) in cross[i * m..(i + 1) * m].iter_mut().enumerate() {
                *c = matern(self.seen.distance(a, points.row(j), &inverse));
            }
        }
        let mut means = vec![0.0; m];
        for (i, weight) in self.weights.iter().enumerate() {
            means.iter_mut().zip(&cross[i * m..(i + 1) * m]).for_each(|(mean, c)| *mean += weight * c);
        }
        forward(&self.root, n, &mut cross, m);
        let mut known = vec![0.0; m];
        for row in cross.chunks_exact(m.max(1)) {
            known.iter_mut().zip(row).for_each(|(k, c)| *k += c * c);
        }
        let at = |(mean, known): (f64, f64)| {
            (self.mean + self.scale * mean, self.scale * (1.0 - known).max(1e-10).sqrt())
        };
        means.into_iter().zip(known).map(at).collect()
    }

    /// Standard deviation of the noise.
    #[cfg(test)]
    fn noise(&self) -> f64 {
        self.scale * (0.5 * self.parameters[self.seen.axes]).exp()
    }
}

fn moments(values: &[f64]) -> (f64, f64) {
    let n = values.len().max(1) as f64;
    let mean = values.iter().sum::<f64>() / n;
    let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n;
    (mean, if variance > 0.0 { variance.sqrt() } else { 1.0 })
}

/// At most `count` observations: the lowest third of them, and the others evenly by age.
fn spread(values: &[f64], count: usize) -> Vec<usize> {
    if values.len() <= count {
        return (0..values.len()).collect();
    }
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|a, b| values[*a].total_cmp(&values[*b]));
    let mut chosen = order[..count / 3].to_vec();
    let mut rest = order[count / 3..].to_vec();
    rest.sort_unstable();
    let wanted = count - chosen.len();
    chosen.extend((0..wanted).map(|i| rest[i * rest.len() / wanted]));
    chosen.sort_unstable();
    chosen
}

fn matern(r2: f64) -> f64 {
    let r = (5.0 * r2).sqrt();
    (1.0 + r + 5.0 / 3.0 * r2) * (-r).exp()
}

fn covariance(seen: &Features, parameters: &[f64]) -> Vec<f64> {
    let n = seen.len();
    let inverse: Vec<f64> = parameters[..seen.axes].iter().map(|l| (-2.0 * l).exp()).collect();
    let noise = parameters[seen.axes].exp() + 1e-8;
    let mut matrix = vec![0.0; n * n];
    for i in 0..n {
        let a = seen.row(i);
        for j in 0..i {
            matrix[i * n + j] = matern(seen.distance(a, seen.row(j), &inverse));
        }
        matrix[i * n + i] = 1.0 + noise;
    }
    matrix
}

/// Cholesky's root of the lower triangle, in place.
fn cholesky(a: &mut [f64], n: usize) {
    for i in 0..n {
        let (above, row) = a.split_at_mut(i * n);
        for j in 0..i {
            let other = &above[j * n..j * n + j];
            let sum: f64 = dot(&row[..j], other);
            row[j] = (row[j] - sum) / above[j * n + j];
        }
        let square: f64 = dot(&row[..i], &row[..i]);
        row[i] = (row[i] - square).max(1e-12).sqrt();
    }
}

/// Four sums side by side, so that they do not wait for each other.
fn dot(a: &[f64], b: &[f64]) -> f64 {
    let mut sums = [0.0; 4];
    let (a4, b4) = (a.chunks_exact(4), b.chunks_exact(4));
    let rest: f64 = a4.remainder().iter().zip(b4.remainder()).map(|(a, b)| a * b).sum();
    for (a, b) in a4.zip(b4) {
        for k in 0..4 {
            sums[k] += a[k] * b[k];
        }
    }
    sums.iter().sum::<f64>() + rest
}

/// Solves `root · x = b` for `m` right-hand sides that lie side by side in rows.
fn forward(root: &[f64], n: usize, b: &mut [f64], m: usize) {
    for i in 0..n {
        let (done, row) = b.split_at_mut(i * m);
        let row = &mut row[..m];
        for j in 0..i {
            let factor = root[i * n + j];
            row.iter_mut().zip(&done[j * m..(j + 1) * m]).for_each(|(x, d)| *x -= factor * d);
        }
        let factor = 1.0 / root[i * n + i];
        row.iter_mut().for_each(|x| *x *= factor);
    }
}

/// Solves `rootᵀ · x = b`.
fn backward(root: &[f64], n: usize, b: &mut [f64]) {
    for i in (0..n).rev() {
        b[i] /= root[i * n + i];
        let value = b[i];
        for j in 0..i {
            b[j] -= root[i * n + j] * value;
        }
    }
}

/// Parameters that observations and beliefs together make most probable: a search by the signs of the gradient
/// (Rprop), from two starts.
fn most_probable(seen: &Features, values: &[f64]) -> Parameters {
    let start = |length: f64| {
        let mut parameters = vec![length; seen.axes];
        parameters.push(NOISE.0);
        parameters
    };
    if seen.len() < 3 {
        return start(LENGTH.0);
    }
    let mut searches = [LENGTH.0, LENGTH.0 + 1.2].map(|length| Search::new(start(length)));
    for search in &mut searches {
        search.run(seen, values, STEPS.0);
    }
    let [first, second] = searches;
    let mut better = if second.best.0 < first.best.0 { second } else { first };
    better.run(seen, values, STEPS.1);
    better.best.1
}

struct Search {
    at: Parameters,
    steps: Vec<f64>,
    slopes: Vec<f64>,
    best: (f64, Parameters),
}

impl Search {
    fn new(at: Parameters) -> Self {
        let n = at.len();
        Self { best: (f64::INFINITY, at.clone()), at, steps: vec![0.3; n], slopes: vec![0.0; n] }
    }

    fn run(&mut self, seen: &Features, values: &[f64], count: usize) {
        for _ in 0..count {
            let (loss, slopes) = loss(seen, values, &self.at);
            if loss < self.best.0 {
                self.best = (loss, self.at.clone());
            }
            for (k, slope) in slopes.into_iter().enumerate() {
                let turned = slope * self.slopes[k];
                if turned > 0.0 {
                    self.steps[k] = (self.steps[k] * 1.3).min(1.0);
                } else if turned < 0.0 {
                    self.steps[k] *= 0.5;
                }
                self.slopes[k] = if turned < 0.0 { 0.0 } else { slope };
                let (low, high) = if k < seen.axes { BOUNDS.0 } else { BOUNDS.1 };
                if self.slopes[k] != 0.0 {
                    self.at[k] = (self.at[k] - self.slopes[k].signum() * self.steps[k]).clamp(low, high);
                }
            }
        }
    }
}

/// How improbable parameters are (minus the logarithm, up to a constant), and its slopes.
fn loss(seen: &Features, values: &[f64], parameters: &[f64]) -> (f64, Vec<f64>) {
    let (n, axes) = (seen.len(), seen.axes);
    let mut root = covariance(seen, parameters);
    cholesky(&mut root, n);
    let mut weights = values.to_vec();
    forward(&root, n, &mut weights, 1);
    let mut total = 0.5 * weights.iter().map(|w| w * w).sum::<f64>();
    total += (0..n).map(|i| root[i * n + i].ln()).sum::<f64>();
    backward(&root, n, &mut weights);

    // The inverse covariance, from the root's inverse.
    let mut inverse_root = vec![0.0; n * n];
    for i in 0..n {
        inverse_root[i * n + i] = 1.0;
    }
    forward(&root, n, &mut inverse_root, n);
    let mut slopes = vec![0.0; axes + 1];
    let scales: Vec<f64> = parameters[..axes].iter().map(|l| (-2.0 * l).exp()).collect();
    let noise = parameters[axes].exp();
    let mut inverse = vec![0.0; n * n];
    for k in 0..n {
        // Row k of the root's inverse ends at k.
        for i in 0..=k {
            let factor = inverse_root[k * n + i];
            if factor != 0.0 {
                let (row, source) = (i * n, k * n);
                for j in 0..=i {
                    inverse[row + j] += factor * inverse_root[source + j];
                }
            }
        }
    }
    let mut parts = vec![0.0; axes];
    for i in 0..n {
        let a = seen.row(i);
        for j in 0..i {
            let b = seen.row(j);
            let mut r2 = 0.0;
            for k in 0..axes {
                parts[k] = seen.squared(k, a[k], b[k]) * scales[k];
                r2 += parts[k];
            }
            // d k / d ln l = 5/3 (1 + √5 r) e^(-√5 r) · (part of r²).
            let r = (5.0 * r2).sqrt();
            let slope = 5.0 / 3.0 * (1.0 + r) * (-r).exp();
            let factor = (inverse[i * n + j] - weights[i] * weights[j]) * slope;
            slopes.iter_mut().zip(&parts).for_each(|(s, part)| *s += factor * part);
        }
        slopes[axes] += 0.5 * noise * (inverse[i * n + i] - weights[i] * weights[i]);
    }
    for (k, parameter) in parameters.iter().enumerate() {
        let (mean, deviation) = if k < axes { LENGTH } else { NOISE };
        let z = (parameter - mean) / deviation;
        total += 0.5 * z * z;
        slopes[k] += z / deviation;
    }
    (total, slopes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_plan::{Axis, Value};

    fn space() -> Space {
        let axis = |name| Axis::new(name, (0..20).map(|i| Value::Number(f64::from(i))).collect());
        let c = Axis::new("c", vec![Value::Text("a".into()), Value::Text("b".into())]);
        Space::new(vec![axis("x"), axis("y"), c], vec![]).unwrap()
    }

    fn truth(p: &Point) -> f64 {
        let at = |i: usize| f64::from(p.0[i].unwrap());
        (at(0) / 4.0).sin() + 0.5 * at(2)
    }

    fn observed(count: usize) -> (Vec<Point>, Vec<f64>) {
        let all = space().points(1000).unwrap();
        let points: Vec<_> = (0..count).map(|i| all[i * 7919 % all.len()].clone()).collect();
        let values = points.iter().map(truth).collect();
        (points, values)
    }

    #[test]
    fn slopes_are_those_of_the_loss() {
        let (points, values) = observed(12);
        let seen = Features::new(&space(), &points);
        let at = vec![-0.5, 0.3, 0.1, -3.0];
        let (_, slopes) = loss(&seen, &values, &at);
        for k in 0..at.len() {
            let moved = |by: f64| {
                let mut at = at.clone();
                at[k] += by;
                loss(&seen, &values, &at).0
            };
            let slope = (moved(1e-5) - moved(-1e-5)) / 2e-5;
            assert!((slope - slopes[k]).abs() < 1e-4 * (1.0 + slope.abs()), "{k}: {slope} {}", slopes[k]);
        }
    }

    #[test]
    fn predictions_follow_the_function_and_know_where_they_are_unsure() {
        let (points, values) = observed(60);
        let seen = Features::new(&space(), &points);
        let process = Gaussian::fit(&seen, &values);
        let all = space().points(1000).unwrap();
        let predicted = process.predict(&Features::new(&space(), &all));
        let error: f64 =
            all.iter().zip(&predicted).map(|(p, (mean, _))| (truth(p) - mean).abs()).sum::<f64>()
                / all.len() as f64;
        assert!(error < 0.05, "{error}");
        let at_seen = process.predict(&seen);
        assert!(
            at_seen.iter().zip(&values).all(|((mean, sigma), v)| (mean - v).abs() < 0.05 && *sigma < 0.1)
        );
        // The axis that does not matter gets the greatest length.
        let lengths = &process.parameters[..3];
        assert!(lengths[1] > lengths[0] + 1.0, "{lengths:?}");
    }

    #[test]
    fn noise_is_learnt_and_repeated_points_are_no_harm() {
        let (mut points, _) = observed(40);
        points.extend(points.clone());
        let stream = paceline_random::Stream::new(1, paceline_random::Purpose::Bench);
        let values: Vec<f64> =
            points.iter().enumerate().map(|(i, p)| truth(p) + 0.3 * stream.normal(i as u64)).collect();
        let process = Gaussian::fit(&Features::new(&space(), &points), &values);
        assert!((0.2..0.45).contains(&process.noise()), "{}", process.noise());
        let pending = Features::new(&space(), &points[..1]);
        let condition_on_pending = process.condition_on_pending(&values, &pending);
        assert!(condition_on_pending.predict(&pending)[0].1 < process.predict(&pending)[0].1);
    }
}
