// The lines of IREE's program that have launches, shortened, with a scratch array that IREE did not need.
    %c-1_i64 = arith.constant -1 : i64
    %c262144 = arith.constant 262144 : index
    %c32768 = arith.constant 32768 : index
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %c2 = arith.constant 2 : index
    %c3 = arith.constant 3 : index
    %c4 = arith.constant 4 : index
    %c2048 = arith.constant 2048 : index
    %c4096 = arith.constant 4096 : index
    %c67108864 = arith.constant 67108864 : index
    %c134217728 = arith.constant 134217728 : index
    %cmd = hal.command_buffer.create device(%device : !hal.device) mode("None") bindings(%c4) : !hal.command_buffer
    %function_id = hal.executable.lookup.function target(%0 : !hal.executable) function(@a::@b::@norm) : i64 loc("<stdin>")
    hal.command_buffer.dispatch<%cmd : !hal.command_buffer> target(%0 : !hal.executable)[%function_id] workgroups([%c32768, %c1, %c1]) bindings([
      (%c0 : index)[%c0, %c67108864], 
      (%c1 : index)[%c0, %c67108864], 
      (%c2 : index)[%c0, %c2048], 
      (%c3 : index)[%c0, %c134217728]
    ]) flags("None")
    hal.command_buffer.execution_barrier<%cmd : !hal.command_buffer> source("Dispatch") target("Dispatch") flags("None")
    %function_id_0 = hal.executable.lookup.function target(%0 : !hal.executable) function(@a::@b::@sum) : i64
    hal.command_buffer.dispatch<%cmd : !hal.command_buffer> target(%0 : !hal.executable)[%function_id_0] workgroups([%c262144, %c1, %c1]) bindings([
      (%c0 : index)[%c0, %c67108864], 
      (%c1 : index)[%c0, %c67108864], 
      (%c4 : index)[%c0, %c4096]
    ]) flags("None")
    hal.command_buffer.finalize<%cmd : !hal.command_buffer>
    %buffer = hal.buffer_view.buffer<%arg0 : !hal.buffer_view> : !hal.buffer
    %buffer_0 = hal.buffer_view.buffer<%arg1 : !hal.buffer_view> : !hal.buffer
    %buffer_1 = hal.buffer_view.buffer<%arg2 : !hal.buffer_view> : !hal.buffer
    %transient_buffer = hal.device.queue.alloca<%device : !hal.device> wait(%0) : !hal.buffer{%c134217728}
    %transient_buffer_2 = hal.device.queue.alloca<%device : !hal.device> wait(%0) : !hal.buffer{%c4096}
    hal.device.queue.execute.indirect<%device : !hal.device> wait(%fence) commands(%memoized) bindings([
      (%buffer : !hal.buffer)[%c0, %c67108864], 
      (%buffer_0 : !hal.buffer)[%c0, %c67108864], 
      (%buffer_1 : !hal.buffer)[%c0, %c2048], 
      (%transient_buffer : !hal.buffer)[%c0, %c134217728], 
      (%transient_buffer_2 : !hal.buffer)[%c0, %c4096]
    ]) flags("None")
    hal.device.queue.dealloca<%device : !hal.device> wait(%fence_3) buffer(%transient_buffer_2 : !hal.buffer)
    %view = hal.buffer_view.create buffer(%transient_buffer : !hal.buffer)[%c67108864, %c67108864] shape([%c32768]) : !hal.buffer_view
    %view_3 = hal.buffer_view.create buffer(%transient_buffer : !hal.buffer)[%c0, %c67108864] shape([%c32768]) : !hal.buffer_view
    util.return %view, %view_3 : !hal.buffer_view, !hal.buffer_view loc("<stdin>":2:1)
