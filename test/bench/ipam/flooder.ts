import process from 'node:process';

import { IpamCaller, newContainerId } from './load.js';
import { connectTls, readIdentity } from './network.js';

/**
 * A program that sends Allocate and Release for one node, as many at once and as fast as they are answered, until it is
 * stopped. Usage: flooder.js PORT NODE CONNECTIONS CALLS_PER_CONNECTION CA CERTIFICATE KEY
 */

const [port, node = '', connectionsCount, callsCount, caPath = '', certificatePath = '', keyPath = ''] =
  process.argv.slice(2);

async function flood(caller: IpamCaller): Promise<never> {
  for (;;) {
    // The digits of another process than the measured one.
    const containerId = newContainerId().replace('0', 'f');
    // A refusal is an answer: the flood continues.
    await caller.allocate(containerId, node).catch(() => undefined);
    await caller.release(containerId).catch(() => undefined);
  }
}

for (let connection = 0; connection < Number(connectionsCount); connection++) {
  const caller = new IpamCaller(await connectTls(Number(port), readIdentity({ caPath, certificatePath, keyPath })));
  for (let call = 0; call < Number(callsCount); call++) void flood(caller);
}
process.stdout.write('flooding\n');
