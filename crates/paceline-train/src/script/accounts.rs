//! A script's accounts of its steps: what they took, and steps that nothing is exchanged in.

use std::time::Duration;

use paceline_attach::{ScriptMessage, ScriptPlace, StepAccount};
use paceline_nn::Outcome;

use super::{ScriptSource, WAIT, Waits};
use crate::clock::{Clock, Phase};
use crate::error::TrainError;
use crate::source::GradientSink;

impl ScriptSource {
    /// Counts what a script has measured.
    pub(super) fn account(&mut self, account: &StepAccount, clock: &mut Clock, beside: bool) -> Outcome {
        self.cpu_s += account.cpu_ns as f64 * 1e-9;
        self.staging += Duration::from_nanos(account.staging_ns);
        let ns = Duration::from_nanos;
        let phases = [
            (account.data_ns, Phase::Data),
            (account.forward_ns, Phase::Forward),
            (account.update_ns, Phase::Apply),
        ];
        if beside {
            // Nobody here waited for it.
            phases.into_iter().for_each(|(time, phase)| clock.spend(ns(time), phase));
            clock.spend(ns(account.evaluated_ns), Phase::Evaluate);
            clock.spend(ns(account.backward_ns + account.staging_ns), Phase::Backward);
        } else {
            let before = clock.seconds(Phase::Backward);
            clock.lap(Phase::Backward);
            let passed = Duration::from_secs_f64((clock.seconds(Phase::Backward) - before).max(0.0));
            phases.into_iter().for_each(|(time, phase)| clock.shift(ns(time), Phase::Backward, phase));
            // Evaluating does not count as training; what is left is the way there and back.
            let evaluated = ns(account.evaluated_ns).min(passed);
            clock.shift(evaluated, Phase::Backward, Phase::Evaluate);
            let told = [
                account.data_ns,
                account.forward_ns,
                account.backward_ns,
                account.staging_ns,
                account.update_ns,
            ];
            let rest = (passed - evaluated).saturating_sub(ns(told.iter().sum()));
            clock.shift(rest, Phase::Backward, Phase::Exchange);
        }
        let samples = usize::try_from(account.samples).unwrap_or(usize::MAX);
        Outcome { loss: account.loss * samples as f64, samples, ..Outcome::default() }
    }

    /// The next step of a script that exchanges nothing; none if it has no more work.
    pub(super) fn next_alone(
        &mut self,
        sink: &mut dyn GradientSink<'_>,
        clock: &mut Clock,
    ) -> Result<Option<Outcome>, TrainError> {
        loop {
            if let Some(account) = self.alone.pop_front() {
                if account.step != self.step {
                    let expected = self.step;
                    return Err(
                        self.nonsense(format!("the account of step {} in place of {expected}", account.step))
                    );
                }
                self.step += 1;
                self.process.at(ScriptPlace::Outside, self.step);
                return Ok(Some(self.account(&account, clock, true)));
            }
            if self.waits == Waits::Left || sink.wait(Duration::ZERO) {
                return Ok(None);
            }
            let heard = match self.socket.next(WAIT) {
                Ok(heard) => heard,
                Err(error) => return Err(self.gone(error)),
            };
            match heard.map_or(Ok(None), |heard| self.aside(heard, clock))? {
                None => {}
                Some(ScriptMessage::Steps(accounts)) => self.alone.extend(accounts),
                Some(ScriptMessage::Leave) => self.waits = Waits::Left,
                Some(other) => {
                    return Err(self.nonsense(format!("{} where nothing is exchanged", other.name())));
                }
            }
        }
    }
}
