import { metrics } from '@opentelemetry/api';
import { Failure } from '@podwire/shared/failure/failure';
import { ReadMetrics } from '@podwire/shared/testing/metrics';
import { afterEach, beforeEach, expect, test } from 'vitest';

import { BirdEvents } from '../bird/bird-events.js';
import type { SessionStatus } from '../bird/sessions.js';
import { observeConditions } from '../conditions/conditions.js';
import { ClusterEvents } from '../node/events.js';
import { AttachmentEvents, Events } from '../pods/events.js';
import { ReconcileEvents } from '../routes/events.js';
import { recordingLog } from '../testing/pods.js';

/** Counted events. */

const attachment = { network: 'net', containerId: 'a', interfaceName: 'eth0' };
const failure = new Failure('UNREACHABLE', 'away');
const session: SessionStatus = {
  session: {
    name: 'podwire_bgp_1',
    about: 'node b',
    family: 4,
    local: '192.0.2.7',
    localAs: 64512,
    neighbour: '192.0.2.8',
    neighbourAs: 64512,
    port: 179,
    password: undefined,
    passive: false,
    bfd: undefined,
    clientOf: undefined,
  },
  state: undefined,
};

let read: ReadMetrics;
let pods: Events;
let attachments: AttachmentEvents;
let node: ReconcileEvents;
let cluster: ClusterEvents;
let bird: BirdEvents;

beforeEach(() => {
  read = new ReadMetrics('podwire.dataplane.');
  const { log } = recordingLog();
  pods = new Events(log);
  attachments = new AttachmentEvents(log);
  node = new ReconcileEvents(log);
  cluster = new ClusterEvents(log);
  bird = new BirdEvents(log);
});

afterEach(() => metrics.disable());

/** Each event with its counts. */
const COUNTED: readonly (readonly [what: string, event: () => void, counted: readonly string[]])[] = [
  [
    'a table is written',
    () => pods.tableWritten('ip podwire', 'drift'),
    ['nft.writes table=ip podwire reason=drift 1'],
  ],
  [
    'a record cannot be stored',
    () => attachments.recordNotStored(attachment, failure),
    ['attachments.records.refused 1'],
  ],
  ['a pod died', () => attachments.attachmentDied(attachment, '/run/netns/a'), ['attachments.dead 1']],
  [
    'a full check is done',
    () => node.checked('drift', 12),
    ['node.checks result=drift 1', 'node.check.duration 0.012'],
  ],
  [
    'another program changed the node’s kernel',
    () => node.drifted(new Map([['route', 3] as const, ['device', 1] as const]), 'ip route replace …'),
    ['node.drift object=route 3', 'node.drift object=device 1'],
  ],
  [
    'sessions are looked at',
    () => bird.polled({ isReachable: true, refusal: undefined, sessions: [session] }),
    ['bird.sessions established=true 0', 'bird.sessions established=false 1'],
  ],
];

test.each(COUNTED)('counts when %s', async (_what, event, counted) => {
  event();
  expect(await read.read()).toEqual([...counted].sort());
});

test('the state of the node can be read at any time', async () => {
  const end = cluster.observe(() => true);
  const endConditions = observeConditions(() => [{ reason: 'NotOnLink', message: '' }]);
  expect(await read.read()).toEqual(['conditions reason=NotOnLink 1', 'ipam.connected 1']);
  end();
  endConditions();
});
