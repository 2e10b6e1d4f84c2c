import { parsePrefix } from '@podwire/shared/net/prefix';
import { describe, expect, test } from 'vitest';

import { takeOrdinals } from '../../records/block.js';
import { parseJson, withoutFields, type JsonObject } from '../../records/json/json.js';
import { RecordKeys } from '../../records/json/keys.js';
import { encodeRecord, serialize } from '../../records/json/registry.js';
import type { RecordValue } from '../../records/view.js';
import {
  affinity,
  block,
  config,
  nodeRecord,
  NOW_MS,
  poolRecord,
  reservation,
  session,
} from '../../testing/records.js';
import type { HolderDetails } from './object-api.js';
import { ObjectForms, type CalicoGroup } from './object-forms.js';
import { affinityName, cidrName, ownerHash } from './object-names.js';

const keys = new RecordKeys('/calico', { hasLock: true });

const formsOf = (group: CalicoGroup) =>
  new ObjectForms({ keys, group, namespace: 'podwire-system', ownConditions: 'marked' });

const HOLDER = {
  handleId: 'net.c1',
  owner: { node: 'n1', network: 'net', interface: 'eth0', pod: 'web', namespace: 'default' },
  releasedAtMs: undefined,
};

/** Also a lease, of which the boot is an attribute of its own. */
const BLOCK: RecordValue = {
  kind: 'block',
  value: takeOrdinals(takeOrdinals(block('10.65.0.0/28', 'n1', { claimTimeMs: NOW_MS }), [1], HOLDER), [2], {
    handleId: 'podwire-lease.n1',
    owner: { node: 'n1', type: 'podwireLease', 'boot-id': 'b1' },
    releasedAtMs: undefined,
  }),
};

const DETAILS: ReadonlyMap<string, HolderDetails> = new Map([
  ['net/c1/eth0', { podUid: 'uid-1', netns: { bootId: 'b1', inode: 4_026_532_000n } }],
]);

const RECORDS: readonly RecordValue[] = [
  BLOCK,
  { kind: 'block', value: { ...block('fd00::/122', 'n1'), owner: undefined } },
  { kind: 'affinity', value: affinity('10.65.0.0/28', 'n1', 'confirmed') },
  { kind: 'affinity', value: { ...affinity('fd00::/122', 'lb', 'pending'), owner: { kind: 'virtual', name: 'lb' } } },
  poolRecord('p', '10.65.0.0/16', { labels: { team: 'a' } }),
  reservation('r', '10.65.0.1/32'),
  config({ strictAffinity: true, cooldownSeconds: 30 }),
  { kind: 'nodeSession', value: session('n1') },
  { kind: 'storeEpoch', value: { id: 'e1', importId: '', phase: 'first' } },
];

/** A record with the fields that the API server sets. */
const served = (object: JsonObject): JsonObject => ({
  ...object,
  metadata: { ...Object(object.metadata), uid: 'uid-1', creationTimestamp: '2026-08-22T06:33:25Z' },
});

function throughApi(forms: ObjectForms, record: RecordValue, details: ReadonlyMap<string, HolderDetails> = new Map()) {
  const key = keys.of(record);
  const id = forms.objectOf(key)!;
  const value = serialize(encodeRecord(record, undefined));
  const object = forms.write({ id, records: new Map([[key, value]]), details }, undefined);
  return { key, value, object, read: forms.read(forms.placeOf(id).resource, served(object))! };
}

const meaningOf = (value: Uint8Array | undefined) => {
  const raw = Object(parseJson(Buffer.from(value!).toString()));
  return { ...raw, metadata: { ...raw.metadata, uid: '', creationTimestamp: '' } };
};

describe.each<CalicoGroup>(['crd.projectcalico.org/v1', 'projectcalico.org/v3'])('in %s', (group) => {
  const forms = formsOf(group);

  test.each(RECORDS.map((record) => [keys.of(record), record] as const))(
    '%s is the same after the way',
    (key, record) => {
      const { value, read } = throughApi(forms, record);
      expect([...read.records.keys()]).toEqual([key]);
      expect(meaningOf(read.records.get(key))).toEqual(meaningOf(value));
    },
  );

  test('attributes of a block have the details of endpoints, and the record has not', () => {
    const { key, value, object, read } = throughApi(forms, BLOCK, DETAILS);
    const secondaries = Object(object.spec).attributes.map((each: JsonObject) => each.secondary);
    expect(secondaries).toEqual([
      { ...HOLDER.owner, 'pod-uid': 'uid-1', 'boot-id': 'b1', 'netns-inode': '4026532000' },
      { node: 'n1', type: 'podwireLease', 'boot-id': 'b1' },
    ]);
    expect(meaningOf(read.records.get(key))).toEqual(meaningOf(value));
    expect(read.details).toEqual(DETAILS);
  });

  test('a copy of a block or an affinity under another name is not read', () => {
    for (const record of [BLOCK, RECORDS[2]!]) {
      const { object } = throughApi(forms, record);
      const { resource } = forms.placeOf(forms.objectOf(keys.of(record))!);
      expect(forms.read(resource, { ...object, metadata: { name: 'copy' } })).toBeUndefined();
    }
  });

  test('the ConfigMap has no records of other objects', () => {
    const { resource } = forms.placeOf('configmaps/podwire-datastore');
    const own = keys.requestPolicies;
    const data = Object.fromEntries(
      [own, keys.of(BLOCK), keys.handle('h')].map((key) => [key.replaceAll('/', '_'), '{}']),
    );
    const { records } = forms.read(resource, { metadata: { name: 'podwire-datastore' }, data })!;
    expect([...records.keys()]).toEqual([own]);
  });

  test('a marked object is no object', () => {
    const { resource } = forms.placeOf('blockaffinities/n1-10-65-0-0-28');
    const { object } = throughApi(forms, RECORDS[2]!);
    const deleted = group === 'projectcalico.org/v3' ? true : 'true';
    expect(forms.read(resource, { ...object, spec: { ...Object(object.spec), deleted } })).toBeUndefined();
  });
});

test('an address that Calico’s migration copied without its release time cools down from the copy on', () => {
  const forms = formsOf('projectcalico.org/v3');
  const cooling = { handleId: undefined, owner: { node: 'n1' }, releasedAtMs: NOW_MS };
  const value = takeOrdinals(takeOrdinals(block('10.65.0.0/28', 'n1'), [1], HOLDER), [2], cooling);
  const object = served(throughApi(forms, { kind: 'block', value }).object);
  const { resource } = forms.placeOf('ipamblocks/10-65-0-0-28');
  const copied = Object(object.spec).attributes.map((each: JsonObject) => withoutFields(each, ['releasedAt']));
  const attributes = [...copied, { secondary: {} }];
  const [record] = forms.read(resource, { ...object, spec: { ...Object(object.spec), attributes } })!.records.values();
  const read = Object(parseJson(Buffer.from(record!).toString())).attributes;
  const times = read.map(({ releasedAt }: { readonly releasedAt?: string }) => releasedAt);
  expect(times).toEqual([undefined, '2026-08-22T06:33:25Z', undefined]);
});

test('the groups differ in the deletion mark of affinities', () => {
  const [, , record] = RECORDS;
  const deletedIn = (group: CalicoGroup): unknown => Object(throughApi(formsOf(group), record!).object.spec).deleted;
  expect([deletedIn('crd.projectcalico.org/v1'), deletedIn('projectcalico.org/v3')]).toEqual(['false', false]);
});

test('fields that records lack stay', () => {
  const forms = formsOf('projectcalico.org/v3');
  const { object } = throughApi(forms, BLOCK);
  const foreign = {
    ...object,
    spec: { ...Object(object.spec), later: 'field' },
    metadata: { name: 'x', labels: { a: 'b' } },
  };
  const { resource } = forms.placeOf('ipamblocks/x');
  const key = keys.of(BLOCK);
  const value = serialize(encodeRecord(BLOCK, undefined));
  const content = { id: 'ipamblocks/x', records: new Map([[key, value]]), details: new Map() };
  const written = forms.write(content, ObjectForms.source(resource, foreign));
  expect(written).toMatchObject({ metadata: { labels: { a: 'b' } }, spec: { later: 'field', strictAffinity: false } });
});

test('a node’s own labels beside Kubernetes’ ones, its tunnels and its deletion are annotations', () => {
  const forms = formsOf('projectcalico.org/v3');
  const parsed = parsePrefix('10.65.0.9/32');
  if (!parsed.ok) throw new Error('the prefix is wrong');
  const node = nodeRecord('n1', {
    labels: { zone: 'a', rack: 'r1' },
    tunnels: new Map([['vxlanTunnelAddress', { address: parsed.prefix }]]),
    deletionTimeMs: NOW_MS,
  });
  const base: JsonObject = { metadata: { name: 'n1', uid: 'u', resourceVersion: '7', labels: { zone: 'a' } } };
  const key = keys.of(node);
  const value = serialize(encodeRecord(node, undefined));
  const patch = forms.patch({ id: 'nodes/n1', records: new Map([[key, value]]), details: new Map() }, base);
  expect(patch).toEqual({
    metadata: {
      resourceVersion: '7',
      uid: 'u',
      annotations: {
        'projectcalico.org/IPv4VXLANTunnelAddr': '10.65.0.9',
        'projectcalico.org/labels': '{"rack":"r1"}',
        'podwire.dev/deletion-time': '2026-08-22T06:33:25Z',
      },
    },
  });
});

describe('object names', () => {
  test.each([
    ['10.65.79.0/26', '10-65-79-0-26'],
    ['fd80:24e2:f998:72d6::/122', 'fd80-24e2-f998-72d6---122'],
  ])('the name of %s', (cidr, name) => {
    expect(cidrName(cidr)).toBe(name);
  });

  test('the hash of a node is the one that Calico’s own tests have', () => {
    expect(ownerHash('node-a')).toBe('PY3TQE2E3XMTETLM2MJO3UITKPFB27YUJ4T4E5XGPEJON3SM4QAA');
  });

  test('a long node name is cut, so that affinities of different nodes have different names', () => {
    expect(affinityName('node-a', '10.65.0.0/26')).toBe('node-a-10-65-0-0-26');
    const names = ['a', 'b'].map((end) => affinityName('n'.repeat(252) + end, '10.65.0.0/26'));
    expect(new Set(names).size).toBe(2);
    for (const name of names) expect(name).toMatch(/^n+-[0-9a-f]{11}-10-65-0-0-26$/);
    for (const name of names) expect(name.length).toBeLessThanOrEqual(253);
  });
});
