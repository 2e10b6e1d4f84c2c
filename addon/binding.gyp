{
  "targets": [
    {
      "target_name": "podwire_netlink",
      "sources": [
        "src/addon.cc",
        "src/binding/deletion_batcher.cc",
        "src/binding/dumps.cc",
        "src/binding/job.cc",
        "src/binding/loop_poll.cc",
        "src/binding/monitor.cc",
        "src/binding/namespace_handle.cc",
        "src/binding/netfilter.cc",
        "src/binding/object_reader.cc",
        "src/binding/shape.cc",
        "src/binding/steps.cc",
        "src/binding/values.cc",
        "src/message/reader.cc",
        "src/message/writer.cc",
        "src/netfilter/conntrack.cc",
        "src/netfilter/packet_log.cc",
        "src/netfilter/set_element.cc",
        "src/netfilter/set_field.cc",
        "src/netfilter/table_watch.cc",
        "src/object/acknowledgement.cc",
        "src/object/ip_address.cc",
        "src/object/link.cc",
        "src/object/qdisc.cc",
        "src/object/tunnel.cc",
        "src/socket/announcement.cc",
        "src/socket/conntrack.cc",
        "src/socket/deleter.cc",
        "src/socket/namespace.cc",
        "src/socket/netfilter.cc",
        "src/socket/netns.cc",
        "src/socket/peer.cc",
        "src/probe/probe.cc",
        "src/socket/request.cc",
        "src/socket/sequence.cc",
        "src/socket/socket.cc",
        "src/socket/subscription.cc",
        "src/socket/sysctl.cc"
      ],
      "include_dirs": ["src"],
      # As system headers, so that -Werror is about this code only.
      "cflags_cc": [
        "-isystem", "<!(node -p \"require('path').dirname(require.resolve('node-addon-api'))\")",
        "-std=c++17", "-Wall", "-Wextra", "-Werror", "-fexceptions",
        # It reads what the kernel sends, as root.
        "-fstack-protector-strong", "-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=2"
      ],
      "cflags_cc!": ["-fno-exceptions", "-std=gnu++17", "-std=gnu++20"],
      "cflags!": ["-fno-exceptions"],
      # In a worker thread that was ended no JavaScript runs any more, and no exception can be thrown: nobody is left to see it.
      "defines": [
        "NAPI_VERSION=8", "NODE_ADDON_API_DISABLE_CPP_EXCEPTIONS", "NODE_API_SWALLOW_UNTHROWABLE_EXCEPTIONS"
      ],
      # A worker thread's end unloads the addon, while a thread of its own may still be on its way out.
      "ldflags": ["-Wl,-z,nodelete", "-Wl,-z,relro,-z,now,-z,noexecstack"]
    }
  ]
}
