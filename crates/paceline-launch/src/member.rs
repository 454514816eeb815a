//! Inside a rank of an elastic run: says where it stands when its generation ends, and connects anew for the next one.

use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use paceline_protocol::{Rank, RankStanding};
use paceline_record::RankState;
use paceline_train::{Generation, MemberControl, NextGeneration, TrainError};
use paceline_wire::{Door, Identity, Interfaces, StreamOptions, Transport, TransportKind, WireError};

use crate::control::{NUMBERS, Place, RankEvent};
use crate::emulated::EmulatedNetwork;
use crate::pauses::pack;
use crate::rank::PauseCommand;

/// How long the members of a generation may take to find each other: one that is lost meanwhile is not found.
pub(crate) const CONNECT: Duration = Duration::from_secs(3);

/// Listens for the other ranks: where they reach this machine, if the run has several.
pub(crate) fn listen(kind: &TransportKind, place: Option<Place>) -> Result<Box<dyn Door>, WireError> {
    match place {
        Some(place) => kind.bind_at.expect("the launcher knows who leaves its machine")(place.address),
        None => kind.bind.expect("the launcher knows who listens")(),
    }
}

/// What a member needs to connect to its peers.
pub(crate) struct MemberLinks {
    pub kind: &'static TransportKind,
    /// Its place on its machine, in a run of several.
    pub place: Option<Place>,
    /// Who it is; rank and numbers of ranks are those of a generation.
    pub identity: Identity,
    pub options: StreamOptions,
    /// The emulated network, by member, and where its interfaces are.
    pub emulated: Option<(EmulatedNetwork, String)>,
}

impl MemberLinks {
    /// Puts a transport on the emulated network, if there is one.
    pub(crate) fn emulate(
        &self,
        transport: Box<dyn Transport>,
        generation: &Generation,
    ) -> Result<Box<dyn Transport>, TrainError> {
        let Some((network, path)) = &self.emulated else { return Ok(transport) };
        let failed = WireError::system("open the emulated interfaces");
        let interfaces = Interfaces::open(path, network.count()).map_err(failed)?;
        let network = network.of_members(&generation.members);
        let StreamOptions { buffer, own_core, .. } = self.options;
        Ok(network.wrap(transport, Arc::new(interfaces), buffer, own_core))
    }
}

/// A member of an elastic run.
pub(crate) struct Member<'a> {
    pub first: Generation,
    pub links: MemberLinks,
    pub told: &'a Receiver<PauseCommand>,
    pub say: &'a dyn Fn(RankEvent, &[f32]),
    /// Where it listens for the next generation, and the addresses of that one's ranks.
    pub door: Option<Box<dyn Door>>,
    pub addresses: Vec<String>,
}

impl MemberControl for Member<'_> {
    fn first(&self) -> Generation {
        self.first.clone()
    }

    fn stand(
        &mut self,
        generation: u32,
        standing: RankStanding,
        handed: Option<RankState>,
    ) -> Result<NextGeneration, TrainError> {
        let door = listen(self.links.kind, self.links.place)?;
        let (handed, numbers) = handed.as_ref().map(pack).unzip();
        let (mut handed, mut numbers) = (handed.map(Box::new), numbers.unwrap_or_default());
        if numbers.len() > NUMBERS {
            self.cannot_hand_over("its parameters and what its script keeps are more than 4 GiB".into());
            (handed, numbers) = (None, Vec::new());
        }
        let address = door.address();
        (self.say)(RankEvent::Standing { generation, standing, address, handed }, &numbers);
        self.door = Some(door);
        loop {
            match self.told.recv() {
                Ok(PauseCommand::Regroup { generation: next, addresses, commit })
                    if next.segment.generation > generation =>
                {
                    self.addresses = addresses;
                    return Ok(NextGeneration::GoOn { generation: next, commit });
                }
                // The run goes on without this member, or the launcher has ended.
                Ok(PauseCommand::Next(None)) | Err(_) => return Ok(NextGeneration::Leave),
                // What was told before belongs to the generation that has ended.
                Ok(_) => {}
            }
        }
    }

    fn cannot_hand_over(&mut self, problem: String) {
        (self.say)(RankEvent::HandsNothing { problem }, &[]);
    }

    fn connect(&mut self, generation: &Generation, links: &[Rank]) -> Result<Box<dyn Transport>, TrainError> {
        let Some(door) = self.door.take() else { return Err(TrainError::Regroup) };
        let address = |peer: &Rank| Some((*peer, self.addresses.get(*peer)?.clone()));
        let peers: Vec<_> = links.iter().filter_map(address).collect();
        let identity = Identity {
            rank: generation.rank,
            workers: generation.workers,
            world: generation.workers + generation.servers,
            ..self.links.identity.clone()
        };
        let transport = door.connect(identity, &peers, self.links.options, CONNECT)?;
        self.links.emulate(transport, generation)
    }

    fn conclude(&mut self, generation: u32) -> Result<bool, TrainError> {
        (self.say)(RankEvent::Concluded { generation }, &[]);
        loop {
            match self.told.recv() {
                Ok(PauseCommand::Conclude) | Err(_) => return Ok(true),
                Ok(PauseCommand::Stand) => return Ok(false),
                Ok(_) => {}
            }
        }
    }

    fn resumed(&mut self, generation: u32) {
        (self.say)(RankEvent::Resumed { generation }, &[]);
    }
}
