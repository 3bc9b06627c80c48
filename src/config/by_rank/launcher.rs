//! What a launcher says in the environment of the processes it has started.

use super::super::parse;
use super::super::settings::quoted;

/// Steps of Slurm from this number on are none that `srun` has made of many tasks: batch scripts, interactive shells
/// and the like (`SLURM_INTERACTIVE_STEP` in Slurm's `slurm.h`).
const SLURM_SPECIAL_STEPS: u32 = 0xffff_fffa;

/// The tasks of a step of Slurm; the second is that of the allocation, which a step takes when it is told no other.
const SLURM_TASKS: &[&str] = &["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"];

/// The number of hosts, likewise.
const SLURM_HOSTS: &[&str] = &["SLURM_STEP_NUM_NODES", "SLURM_NNODES"];

/// The names of the hosts, likewise, in the compressed form `node[01-03,07],other`.
const SLURM_HOST_LIST: &[&str] = &["SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"];

/// The variables by which a rank is found, in this order: a launcher inside of another one's job comes first.
pub(super) const RANK_VARIABLES: &[&str] = &["OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID"];

/// One of many processes that a launcher has started.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Ranked {
    pub(super) rank: u32,
    /// Number of processes.
    pub(super) size: u32,
    /// Whether the launcher was given several programs; Open MPI says so.
    pub(super) several_programs: bool,
    /// The host on which rank 0 is, by a name or address that every process can use, where that is known.
    pub(super) first_host: Option<String>,
}

impl Ranked {
    /// What the environment says; `None` when no launcher has started this process.
    ///
    /// # Errors
    /// The variable that is not as expected, or missing beside the others.
    pub(super) fn find(lookup: &dyn Fn(&str) -> Option<String>) -> Result<Option<Self>, String> {
        let environment = Environment(lookup);
        let step = environment.slurm_step()?;
        let Some(variable) = RANK_VARIABLES.iter().find(|name| match **name {
            // A batch script has a rank, too, though nothing else has been started.
            "SLURM_PROCID" => step.is_some() && environment.text(name).is_some(),
            _ => environment.text(name).is_some(),
        }) else {
            return Ok(None);
        };
        let (sizes, local): (&[&str], _) = match *variable {
            "OMPI_COMM_WORLD_RANK" => (&["OMPI_COMM_WORLD_SIZE"], Some("OMPI_COMM_WORLD_LOCAL_SIZE")),
            "PMI_RANK" => (&["PMI_SIZE"], Some("MPI_LOCALNRANKS")),
            _ => (SLURM_TASKS, None),
        };
        let rank = environment.required(&[variable])?;
        let size = environment.required(sizes)?;
        if rank >= size {
            return Err(format!("{variable}: expected a rank below {size} ({}), found {rank}", sizes.join(" or ")));
        }
        let is_open_mpi = *variable == "OMPI_COMM_WORLD_RANK";
        let several_programs = is_open_mpi && environment.number("OMPI_NUM_APP_CTX")?.is_some_and(|n| n > 1);
        let here = match local {
            Some(name) => environment.number(name)? == Some(size),
            None => false,
        };
        // What srun has started itself, and not a launcher that uses srun to get to the other hosts.
        let step = step.filter(|tasks| !is_open_mpi && *tasks == size);
        let first_host = match step {
            _ if here => Some(LOOPBACK.to_owned()),
            Some(_) => environment.first_of_step()?,
            None => None,
        };
        Ok(Some(Self { rank, size, several_programs, first_host }))
    }
}

/// The host when all processes are on one.
pub(super) const LOOPBACK: &str = "127.0.0.1";

struct Environment<'a>(&'a dyn Fn(&str) -> Option<String>);

impl Environment<'_> {
    /// As everywhere, an empty variable counts as unset.
    fn text(&self, name: &str) -> Option<String> {
        (self.0)(name).map(|text| text.trim().to_owned()).filter(|text| !text.is_empty())
    }

    fn number(&self, name: &str) -> Result<Option<u32>, String> {
        let Some(text) = self.text(name) else { return Ok(None) };
        match parse::number(&text) {
            Some(number) => Ok(Some(number)),
            None => Err(format!("{name}: expected a whole number, found {}", quoted(&text))),
        }
    }

    fn first_number(&self, names: &[&str]) -> Result<Option<u32>, String> {
        for name in names {
            if let Some(number) = self.number(name)? {
                return Ok(Some(number));
            }
        }
        Ok(None)
    }

    fn required(&self, names: &[&str]) -> Result<u32, String> {
        self.first_number(names)?
            .ok_or_else(|| format!("{}: expected a whole number beside the rank, found nothing", names.join(" or ")))
    }

    /// The number of tasks of the step of Slurm that this process is in, when it is one made by `srun`.
    fn slurm_step(&self) -> Result<Option<u32>, String> {
        let id = self.text("SLURM_STEP_ID").or_else(|| self.text("SLURM_STEPID"));
        // Special steps have names in some versions.
        match id.and_then(|id| parse::number::<u32>(&id)) {
            Some(id) if id < SLURM_SPECIAL_STEPS => self.first_number(SLURM_TASKS),
            _ => Ok(None),
        }
    }

    /// The host of task 0 of a step: the first of its list.
    fn first_of_step(&self) -> Result<Option<String>, String> {
        if self.first_number(SLURM_HOSTS)? == Some(1) {
            return Ok(Some(LOOPBACK.to_owned()));
        }
        let Some(name) = SLURM_HOST_LIST.iter().find(|name| self.text(name).is_some()) else { return Ok(None) };
        let list = self.text(name).unwrap_or_default();
        match first_host(&list) {
            Some(host) => Ok(Some(host)),
            None => {
                Err(format!("{name}: expected names of hosts such as node[01-03,07],other, found {}", quoted(&list)))
            }
        }
    }
}

/// The first host of a list in Slurm's compressed form.
pub(super) fn first_host(list: &str) -> Option<String> {
    let mut host = String::new();
    let mut rest = list;
    // Up to the first comma that is outside of brackets; of each bracket the first number.
    while let Some(at) = rest.find(['[', ',']) {
        host.push_str(&rest[..at]);
        if rest[at..].starts_with(',') {
            return parse::host(&host);
        }
        let (numbers, after) = rest[at + 1..].split_once(']')?;
        let first = numbers.split(['-', ',']).next().filter(|first| !first.is_empty())?;
        host.push_str(first);
        rest = after;
    }
    host.push_str(rest);
    parse::host(&host)
}
