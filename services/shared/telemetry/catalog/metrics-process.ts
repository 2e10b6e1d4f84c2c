import { COARSE_SECONDS, FINE_SECONDS, counter, gauge, histogram, type MetricCatalog } from './metric-entry.js';

const ROLE = { role: ['node', 'operator', 'reader', 'none'] };
const RPC = {
  'rpc.system.name': ['grpc'],
  'rpc.method': 'methods of the contract',
  'rpc.response.status_code': 'names of gRPC',
};
const NETWORK = 'after the first request over the network';

/** Metrics of every process. */
export const PROCESS_METRICS = {
  'podwire.build.info': gauge('', 'Always 1; the labels name the build', {
    labels: { version: 'the release', node_version: 'of Node.js' },
  }),
  'podwire.ready': gauge('', '1 if the service answers with success, as its gRPC health status says, else 0'),
  'process.cpu.time': counter('s', 'Processor time', { labels: { 'cpu.mode': ['user', 'system'] } }),
  'process.memory.usage': gauge('By', 'Resident memory'),
  'process.unix.file_descriptor.count': gauge('{file_descriptor}', 'Open file descriptors'),
  'v8js.memory.heap.used': gauge('By', 'Used JavaScript heap'),
  'nodejs.eventloop.utilization': gauge('', 'Share of the time since the last collection that the event loop was busy'),
  'nodejs.eventloop.delay.p99': gauge('s', 'Delay of the event loop since the last collection, 99th percentile'),

  'rpc.server.call.duration': histogram('s', 'Time of served calls', {
    labels: RPC,
    when: 'after the first call',
    buckets: COARSE_SECONDS,
  }),
  'rpc.client.call.duration': histogram(
    's',
    'Time of calls to other services, with connecting and retries of the transport',
    { labels: RPC, when: 'after the first call', buckets: COARSE_SECONDS },
  ),
  'podwire.operation.duration': histogram('s', 'Time of kernel requests and of waits within a call', {
    labels: { operation: ['kernel.open', 'kernel.observe', 'kernel.batch', 'dataplane.lock_wait', 'ipam.lane_wait'] },
    when: 'after the first one',
    buckets: FINE_SECONDS,
  }),
  'podwire.rpc.wait.duration': histogram('s', 'Time for which requests over the network waited for their turn', {
    labels: ROLE,
    when: NETWORK,
    buckets: COARSE_SECONDS,
  }),
  'podwire.rpc.requests.refused': counter(
    '{request}',
    'Refused connections and requests; identity: without a valid certificate or token',
    {
      labels: { ...ROLE, reason: ['connections', 'calls', 'identity', 'requests', 'streams', 'deadline'] },
      when: NETWORK,
    },
  ),
} as const satisfies MetricCatalog;
