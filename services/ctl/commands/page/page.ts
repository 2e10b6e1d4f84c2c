import { once } from 'node:events';
import type { Server } from 'node:http';

import { Failure } from '@podwire/shared/failure/failure';
import { messageOf } from '@podwire/shared/failure/thrown';

import { wholeNumber } from '../../command-line/forms.js';
import { ON_NODE } from '../../command-line/options.js';
import { flag, option, type Verb } from '../../command-line/verb.js';
import { sentence } from '../../output/report.js';
import { clusterPage, nodePage } from './page-data.js';
import { pageServer } from './page-server.js';

const CLUSTER = flag('--cluster', 'all nodes, through podwire-ipam');
const PORT = option('--port', wholeNumber('NUMBER', { min: 0, max: 65_535 }), 'port of 127.0.0.1 (a free one)');

export const page: Verb = {
  name: 'page',
  about:
    'serves a page for a browser: latency of ADDs, failures, nodes, pools and conditions of a node or of all nodes',
  details:
    'Listens on the loopback of this machine until Ctrl-C; any user of the machine can read the page. It changes nothing.\n' +
    'From another machine: ssh -L 8080:127.0.0.1:8080 or kubectl port-forward, with --port 8080.',
  options: [ON_NODE, PORT],
  flags: [CLUSTER],
  examples: ['page', 'page --node node-1', 'page --cluster --port 8080'],
  run: async (input, context) => {
    if (input.has(CLUSTER) && input.get(ON_NODE) !== undefined)
      throw new Failure('INVALID_REQUEST', '--cluster: shows all nodes; leave --node out');
    const read = (input.has(CLUSTER) ? clusterPage : nodePage)(context);
    // A wrong address or a refusal is reported here, not by a page without content.
    await read();
    const stopped = context.process.stopSignal();
    const server = pageServer({ read });
    const url = await listen(server, input.get(PORT) ?? 0);
    context.print({ sections: [sentence(url)], data: () => ({ url }), hints: ['Ctrl-C ends it'] });
    if (!stopped.aborted) await once(stopped, 'abort');
    server.close();
    server.closeAllConnections();
    return { sections: [], data: () => null, isPrinted: true };
  },
};

/** @throws Failure INVALID_REQUEST where the port cannot be used */
async function listen(server: Server, port: number): Promise<string> {
  try {
    await once(server.listen(port, '127.0.0.1'), 'listening');
  } catch (error) {
    throw new Failure('INVALID_REQUEST', `--port ${port}: ${messageOf(error)}; choose another port`, { cause: error });
  }
  const address = server.address();
  return `http://127.0.0.1:${typeof address === 'object' && address ? address.port : port}/`;
}
