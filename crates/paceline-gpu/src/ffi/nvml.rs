//! NVIDIA's management library: opened at run time, so that the program needs no driver.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_ulonglong, c_void};

use crate::inventory::Gpu;

/// The library, as the driver installs it.
const LIBRARY: &str = "libnvidia-ml.so.1";
/// Names another library; tests have one of their own.
const VARIABLE: &str = "PACELINE_NVML";
/// Longest name or UUID.
const TEXT: usize = 96;

type Device = *mut c_void;

#[repr(C)]
#[derive(Default)]
struct MemoryInfo {
    total: c_ulonglong,
    free: c_ulonglong,
    used: c_ulonglong,
}

#[repr(C)]
#[derive(Default)]
struct Utilization {
    gpu: c_uint,
    memory: c_uint,
}

type Call = unsafe extern "C" fn() -> c_int;
type Count = unsafe extern "C" fn(*mut c_uint) -> c_int;
type Handle = unsafe extern "C" fn(c_uint, *mut Device) -> c_int;
type Text = unsafe extern "C" fn(Device, *mut c_char, c_uint) -> c_int;
type Memory = unsafe extern "C" fn(Device, *mut MemoryInfo) -> c_int;
type Rates = unsafe extern "C" fn(Device, *mut Utilization) -> c_int;
type Power = unsafe extern "C" fn(Device, *mut c_uint) -> c_int;

/// The library, loaded and ready. It stays loaded until the process ends.
pub struct Nvml {
    shutdown: Call,
    name: Text,
    uuid: Text,
    memory: Memory,
    rates: Rates,
    power: Power,
    devices: Vec<Device>,
}

/// How busy a GPU is; what it does not say is none.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GpuUsage {
    /// Part of the last moment in which something was computed, from 0 to 1.
    pub utilisation: Option<f64>,
    /// Memory in use, by everybody.
    pub memory_used_bytes: Option<f64>,
    /// Memory that it has.
    pub memory_total_bytes: Option<f64>,
    /// What it draws, in watts.
    pub power_w: Option<f64>,
}

// SAFETY: NVML may be called from any thread; handles are valid for the whole process.
unsafe impl Send for Nvml {}

/// A function of the library.
///
/// # Safety
/// `F` must be the type of the function of this name.
unsafe fn function<F: Copy>(library: *mut c_void, name: &str) -> Result<F, String> {
    let text = CString::new(name).map_err(|error| error.to_string())?;
    // SAFETY: the library is open, and the name ends with a zero.
    let found = unsafe { libc::dlsym(library, text.as_ptr()) };
    if found.is_null() {
        return Err(format!("has no {name}: its driver is too old"));
    }
    // SAFETY: a function's address as the pointer that the caller says it is; both are one word.
    Ok(unsafe { std::mem::transmute_copy::<*mut c_void, F>(&found) })
}

impl Nvml {
    /// Loads the library; why not, where it is not there.
    pub fn load() -> Result<Self, String> {
        let named = std::env::var(VARIABLE).ok().filter(|name| !name.is_empty());
        let name = named.unwrap_or_else(|| LIBRARY.into());
        Self::open(&name).map_err(|problem| format!("{name} {problem}"))
    }

    fn open(name: &str) -> Result<Self, String> {
        let file = CString::new(name).map_err(|error| error.to_string())?;
        // SAFETY: the name ends with a zero; the driver's library has no initialisers that ask anything of this process.
        let library = unsafe { libc::dlopen(file.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if library.is_null() {
            return Err("cannot be loaded".into());
        }
        // SAFETY: names and types as nvml.h has them.
        let (init, count, handle): (Call, Count, Handle) = unsafe {
            (
                function(library, "nvmlInit_v2")?,
                function(library, "nvmlDeviceGetCount_v2")?,
                function(library, "nvmlDeviceGetHandleByIndex_v2")?,
            )
        };
        // SAFETY: the same.
        let mut nvml = unsafe {
            Self {
                shutdown: function(library, "nvmlShutdown")?,
                name: function(library, "nvmlDeviceGetName")?,
                uuid: function(library, "nvmlDeviceGetUUID")?,
                memory: function(library, "nvmlDeviceGetMemoryInfo")?,
                rates: function(library, "nvmlDeviceGetUtilizationRates")?,
                power: function(library, "nvmlDeviceGetPowerUsage")?,
                devices: Vec::new(),
            }
        };
        // SAFETY: it takes nothing.
        let code = unsafe { init() };
        if code != 0 {
            // Nothing was begun that would have to be shut down.
            std::mem::forget(nvml);
            return Err(format!("does not begin: error {code} of nvmlInit (is the driver loaded?)"));
        }
        let mut number = 0;
        // SAFETY: it writes one number.
        let code = unsafe { count(&raw mut number) };
        if code != 0 {
            return Err(format!("does not tell its GPUs: error {code}"));
        }
        for index in 0..number {
            let mut device: Device = std::ptr::null_mut();
            // SAFETY: it writes one handle.
            let code = unsafe { handle(index, &raw mut device) };
            if code != 0 {
                return Err(format!("does not tell of GPU {index}: error {code}"));
            }
            nvml.devices.push(device);
        }
        Ok(nvml)
    }

    /// How many GPUs there are.
    pub fn count(&self) -> usize {
        self.devices.len()
    }

    fn text(&self, of: Text, index: usize) -> Option<String> {
        let mut text = [0 as c_char; TEXT];
        // SAFETY: the handle is the library's, and it writes no more than the length says.
        let code = unsafe { of(*self.devices.get(index)?, text.as_mut_ptr(), TEXT as c_uint) };
        text[TEXT - 1] = 0;
        // SAFETY: the text ends with a zero at its last place at the latest.
        (code == 0).then(|| unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy().into_owned())
    }

    fn memory(&self, index: usize) -> Option<MemoryInfo> {
        let mut memory = MemoryInfo::default();
        // SAFETY: the handle is the library's, and it writes one such structure.
        let code = unsafe { (self.memory)(*self.devices.get(index)?, &raw mut memory) };
        (code == 0).then_some(memory)
    }

    /// Every GPU.
    pub fn gpus(&self) -> Vec<Gpu> {
        let gpu = |index: usize| {
            let memory = self.memory(index);
            Gpu {
                index,
                uuid: self.text(self.uuid, index).unwrap_or_default(),
                name: self.text(self.name, index).unwrap_or_else(|| "unknown".into()),
                memory_bytes: memory.as_ref().map(|memory| memory.total),
                free_bytes: memory.as_ref().map(|memory| memory.free),
            }
        };
        (0..self.count()).map(gpu).collect()
    }

    /// How busy a GPU is now.
    pub fn usage(&self, index: usize) -> GpuUsage {
        let Some(&device) = self.devices.get(index) else { return GpuUsage::default() };
        let (mut rates, mut milliwatts) = (Utilization::default(), 0);
        // SAFETY: the handle is the library's; each writes one structure or number.
        let codes =
            unsafe { ((self.rates)(device, &raw mut rates), (self.power)(device, &raw mut milliwatts)) };
        let memory = self.memory(index);
        GpuUsage {
            utilisation: (codes.0 == 0).then(|| f64::from(rates.gpu) / 100.0),
            memory_used_bytes: memory.as_ref().map(|memory| memory.used as f64),
            memory_total_bytes: memory.as_ref().map(|memory| memory.total as f64),
            power_w: (codes.1 == 0).then(|| f64::from(milliwatts) / 1000.0),
        }
    }
}

impl Drop for Nvml {
    fn drop(&mut self) {
        // SAFETY: it takes nothing, and ends what `nvmlInit_v2` has begun.
        unsafe { (self.shutdown)() };
    }
}
