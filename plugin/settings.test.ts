import { readFileSync } from 'node:fs';
import { join } from 'node:path';

import type { Setting } from '@podwire/shared/runtime/config-reader';
import { describe, expect, test } from 'vitest';

import { pluginSettings, pluginUsage, readPluginSettings } from './settings.js';

describe('settings', () => {
  test('have defaults that need no configuration', () => {
    expect(readPluginSettings({}, 'Node-1.Example')).toEqual({
      socket: '/run/podwire/cni.sock',
      ipamAddress: 'unix:/run/podwire/ipam.sock',
      ipamTls: undefined,
      ipamTlsCaFile: '',
      ipamTlsCertFile: '',
      ipamTlsKeyFile: '',
      dataplaneAddress: 'unix:/run/podwire/dataplane.sock',
      nodeName: 'node-1.example',
      addTimeoutMs: 15_000,
      delTimeoutMs: 15_000,
      delServiceTimeoutMs: 2_000,
      stateDirectory: '/var/lib/podwire/plugin',
      journalMaxEntriesCount: 10_000,
      cleanUpTimeoutMs: 5_000,
      drainTimeoutMs: 2_000,
      strictStatus: false,
      logLevel: 'info',
    });
  });

  test('are all refused at once', () => {
    const wrong = {
      PODWIRE_PLUGIN_SOCKET: 'relative',
      PODWIRE_PLUGIN_IPAM_ADDRESS: 'nowhere',
      PODWIRE_PLUGIN_IPAM_TLS_CA_FILE: 'ca.crt',
      PODWIRE_PLUGIN_IPAM_TLS_CERT_FILE: 'tls.crt',
      PODWIRE_PLUGIN_IPAM_TLS_KEY_FILE: 'tls.key',
      PODWIRE_PLUGIN_DATAPLANE_ADDRESS: 'unix:relative',
      PODWIRE_PLUGIN_NODE_NAME: 'Node_1',
      PODWIRE_PLUGIN_ADD_TIMEOUT_MS: '0',
      PODWIRE_PLUGIN_DEL_TIMEOUT_MS: '1e3',
      PODWIRE_PLUGIN_DEL_SERVICE_TIMEOUT_MS: '-1',
      PODWIRE_PLUGIN_STATE_DIRECTORY: 'relative',
      PODWIRE_PLUGIN_JOURNAL_MAX_ENTRIES_COUNT: '0',
      PODWIRE_PLUGIN_CLEAN_UP_TIMEOUT_MS: '20001',
      PODWIRE_PLUGIN_DRAIN_TIMEOUT_MS: '90001',
      PODWIRE_PLUGIN_STRICT_STATUS: 'yes',
      PODWIRE_PLUGIN_LOG_LEVEL: 'loud',
    };
    const names = Object.values(pluginSettings('node-1')).map(({ variable }) => variable);
    expect(Object.keys(wrong).sort()).toEqual(names.sort());
    const fields = [...Object.keys(wrong), 'PODWIRE_PLUGIN_COLOUR'].map((field) => expect.objectContaining({ field }));
    expect(() => readPluginSettings({ ...wrong, PODWIRE_PLUGIN_COLOUR: 'blue' }, 'node-1')).toThrow(
      expect.objectContaining({ code: 'INVALID_SETTINGS', violations: expect.arrayContaining(fields) }),
    );
  });

  test('require a node name where the host’s name is not valid in Kubernetes', () => {
    expect(() => readPluginSettings({}, '(none)')).toThrow(/PODWIRE_PLUGIN_NODE_NAME/);
    expect(readPluginSettings({ PODWIRE_PLUGIN_NODE_NAME: 'a' }, '(none)').nodeName).toBe('a');
  });
});

test('the shim waits for the longest command and its undoing, however long it waited for the socket', () => {
  const header = readFileSync(join(import.meta.dirname, 'shim/src/protocol.h'), 'utf8');
  const shimMs = (name: string) => Number(new RegExp(`#define ${name} (\\d+)`).exec(header)?.[1]);
  const { addTimeoutMs, cleanUpTimeoutMs } = pluginSettings('node-1');
  const largestMs = ({ variable, about, schema }: Setting<number>) => {
    const text = /1 to (\d+)/.exec(about)?.[1] ?? '';
    expect(schema.safeParse(String(Number(text) + 1)).success, variable).toBe(false);
    return schema.parse(text);
  };
  const longestMs = largestMs(addTimeoutMs) + largestMs(cleanUpTimeoutMs);
  expect(shimMs('PODWIRE_CONNECT_WINDOW_MS') + longestMs).toBeLessThan(shimMs('PODWIRE_OVERALL_DEADLINE_MS'));
});

test('the usage has every setting, its default and its effect', () => {
  const text = pluginUsage('node-1').replace(/\s+/g, ' ');
  for (const { variable, default: usual, about } of Object.values(pluginSettings('node-1')))
    expect(text).toContain(`${variable}${usual === '' ? '' : ` (${usual})`} ${about}`);
});
