import { spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import process from 'node:process';

import { ROOT } from '../../support/root.js';
import { median, quantile, type Figure } from '../figure.js';
import { freePort } from '../ipam/etcd.js';
import { IpamCaller, newContainerId, timed } from '../ipam/load.js';
import { Certificates, connectTls, type CertificateFiles } from '../ipam/network.js';
import { Place, startIpam } from '../ipam/processes.js';

const ROUNDS = 5;
const WARM_UP_CALLS = 1000;
const CALLS_PER_ROUND = 500;

const FLOOD_CONNECTIONS = 4;
const FLOOD_CALLS_PER_CONNECTION = 100;

/**
 * One node allocates one address after the other, in turns while another node is idle and while it floods podwire-ipam
 * from a process of its own; over TLS, on the embedded datastore.
 */
export async function measureIpamFlood(report: (line: string) => void): Promise<Figure[]> {
  const place = new Place();
  try {
    const certificates = await Certificates.create(place);
    const port = await freePort();
    const settings = { PODWIRE_IPAM_STORE_DIRECTORY: place.path('store'), ...(await certificates.serverSettings()) };
    const ipam = await startIpam(place, settings, { network: `127.0.0.1:${port}` });
    const caller = new IpamCaller(await connectTls(port, await certificates.identity('worker-2')));
    const flooderFiles = await certificates.node('worker-1');
    await allocationTimes(caller, WARM_UP_CALLS);
    const rounds: { readonly idle: number[]; readonly flooded: number[] }[] = [];
    for (let round = 0; round < ROUNDS; round++) {
      const idle = await allocationTimes(caller, CALLS_PER_ROUND);
      const flooder = await startFlooder(port, flooderFiles);
      const flooded = await allocationTimes(caller, CALLS_PER_ROUND);
      await stopFlooder(flooder);
      rounds.push({ idle, flooded });
      report(`idle ${describe(idle)}; while another node floods ${describe(flooded)}`);
    }
    caller.close();
    await ipam.process.stop();
    const ratioAt = (share: number): number =>
      median(rounds.map(({ idle, flooded }) => quantile(flooded, share) / quantile(idle, share)));
    const ratio = { unit: 'ratio', better: 'lower', goal: 3 } as const;
    return [
      { name: 'ipam.flood.p50_vs_idle', value: ratioAt(0.5), ...ratio },
      { name: 'ipam.flood.p99_vs_idle', value: ratioAt(0.99), ...ratio },
    ];
  } finally {
    place.remove();
  }
}

async function allocationTimes(caller: IpamCaller, count: number): Promise<number[]> {
  const times: number[] = [];
  for (let call = 0; call < count; call++) {
    const containerId = newContainerId();
    times.push(await timed(() => caller.allocate(containerId, 'worker-2')));
    await caller.release(containerId);
  }
  return times;
}

function describe(times: readonly number[]): string {
  return `p50 ${median(times).toFixed(2)} ms, p99 ${quantile(times, 0.99).toFixed(2)} ms`;
}

async function startFlooder(port: number, files: CertificateFiles): Promise<ChildProcess> {
  const program = join(ROOT, 'test', 'dist', 'bench', 'ipam', 'flooder.js');
  const load = [FLOOD_CONNECTIONS, FLOOD_CALLS_PER_CONNECTION].map(String);
  const { caPath, certificatePath, keyPath } = files;
  const args = [program, String(port), 'worker-1', ...load, caPath, certificatePath, keyPath];
  const flooder = spawn(process.execPath, args, { stdio: ['ignore', 'pipe', 'inherit'] });
  await once(flooder.stdout, 'data');
  return flooder;
}

async function stopFlooder(flooder: ChildProcess): Promise<void> {
  const exited = once(flooder, 'exit');
  flooder.kill('SIGKILL');
  await exited;
}
