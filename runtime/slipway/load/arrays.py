"""The host's arrays, as every room above takes and gives them."""

from slipway_kernels.cpu.arrays import BF16 as BF16
from slipway_kernels.cpu.arrays import E4M3 as E4M3
from slipway_kernels.cpu.arrays import E5M2 as E5M2
from slipway_kernels.cpu.arrays import E8M0 as E8M0
from slipway_kernels.cpu.arrays import ELEMENTS as ELEMENTS
from slipway_kernels.cpu.arrays import FP16 as FP16
from slipway_kernels.cpu.arrays import FP32 as FP32
from slipway_kernels.cpu.arrays import INT8 as INT8
from slipway_kernels.cpu.arrays import INT32 as INT32
from slipway_kernels.cpu.arrays import INT64 as INT64
from slipway_kernels.cpu.arrays import NARROW as NARROW
from slipway_kernels.cpu.arrays import UINT8 as UINT8
from slipway_kernels.cpu.arrays import Array as Array
from slipway_kernels.cpu.arrays import DType as DType
from slipway_kernels.cpu.arrays import is_float as is_float
from slipway_kernels.cpu.binding import Floats as Floats
from slipway_kernels.cpu.binding import Ints as Ints
from slipway_kernels.cpu.sources import Source as Source
from slipway_kernels.cpu.sources import cast as cast
from slipway_kernels.cpu.sources import converted as converted
from slipway_kernels.cpu.sources import rounded as rounded
