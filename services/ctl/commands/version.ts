import { Failure } from '@podwire/shared/failure/failure';
import { readProcessRelease } from '@podwire/shared/runtime/process-release';

import type { Context, Service } from '../clients/services.js';
import { flag, type Verb } from '../command-line/verb.js';
import { ON_NODE } from '../command-line/options.js';
import { DONE, exitCodeOf, type Report, type Table } from '../output/report.js';
import { failureLine, momentAndAge } from '../output/words.js';

const CLIENT = flag('--client', 'podwirectl only; connects to no service');

/** Process information of a component. */
interface Release {
  readonly release: string;
  readonly nodeVersion: string;
  /** Start; undefined for podwirectl, whose process has just started. */
  readonly startTime: Date | undefined;
}

interface Component {
  readonly name: string;
  /** Address; undefined for podwirectl. */
  readonly endpoint?: string;
  /** The failure says why the release is unknown. */
  readonly answer: Release | Failure;
}

export const version: Verb = {
  name: 'version',
  about: 'the releases of podwirectl and of the running services',
  details:
    'The release of a running service differs from the installed one until the service is restarted. Services of neighbouring\n' +
    'releases work together. Exit code 5: a service did not answer.',
  flags: [CLIENT],
  examples: ['version', 'version --client', 'version -o json'],
  options: [ON_NODE],
  run: async (input, context) => {
    const own = { ...(await readProcessRelease()), startTime: undefined };
    const services = input.has(CLIENT) ? [] : await readServices(context);
    return reportOf([{ name: 'podwirectl', answer: own }, ...services], context.clock.nowMs());
  },
};

function readServices({ ipam, dataplane }: Context): Promise<Component[]> {
  return Promise.all([
    read('podwire-ipam', ipam.address, () => callService(ipam)),
    read('podwire-node', dataplane.address, () => callService(dataplane)),
  ]);
}

async function callService(service: Service): Promise<Release> {
  const { ReleaseServiceService } = await import('@podwire/proto/podwire/release/v1/release');
  return service.call(ReleaseServiceService.getRelease, {});
}

async function read(name: string, endpoint: string, call: () => Promise<Release>): Promise<Component> {
  try {
    return { name, endpoint, answer: await call() };
  } catch (error) {
    if (!(error instanceof Failure)) throw error;
    return { name, endpoint, answer: error };
  }
}

function reportOf(components: readonly Component[], nowMs: number): Report {
  const failures = components.flatMap(({ answer }) => (answer instanceof Failure ? [answer] : []));
  return {
    sections: [tableOf(components, nowMs)],
    errors: failures.map((failure) => `${stateOf(failure)}: ${failureLine(failure)}`),
    data: () => ({ components: components.map(dataOf) }),
    exitCode: Math.max(DONE, ...failures.map(({ code }) => exitCodeOf(code))),
  };
}

function tableOf(components: readonly Component[], nowMs: number): Table {
  return {
    kind: 'table',
    columns: ['COMPONENT', 'RELEASE', 'NODE.JS', 'STARTED', 'ENDPOINT'],
    rows: components.map(({ name, endpoint = '', answer }) =>
      answer instanceof Failure
        ? [name, stateOf(answer), '', '', endpoint]
        : [name, answer.release, answer.nodeVersion, momentAndAge(answer.startTime, nowMs), endpoint],
    ),
    none: '',
  };
}

function stateOf(failure: Failure): string {
  return failure.code === 'UNREACHABLE' || failure.code === 'DEADLINE_EXCEEDED' ? 'unreachable' : 'refused';
}

function dataOf({ name, endpoint, answer }: Component) {
  const failed = answer instanceof Failure;
  return {
    component: name,
    endpoint: endpoint ?? null,
    release: failed ? null : answer.release,
    nodeVersion: failed ? null : answer.nodeVersion,
    startTime: failed ? null : (answer.startTime?.toISOString() ?? null),
    error: failed ? failureLine(answer) : null,
  };
}
