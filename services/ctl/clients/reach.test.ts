import { writeFileSync } from 'node:fs';
import { createServer, type Server } from 'node:net';
import { join } from 'node:path';

import { DeletePoolResponse, PoolServiceService } from '@podwire/proto/podwire/ipam/v1/pool';
import { Failure } from '@podwire/shared/failure/failure';
import { certificateSource, CertificateFolder, validity } from '@podwire/shared/testing/certificates';
import { TestServers } from '@podwire/shared/testing/server';
import type { TlsFiles } from '@podwire/shared/tls/tls-files';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';

import { fake, Fakes, foundPool } from '../testing/ctl.js';

/** Commands in front of a podwire-ipam with TLS, and what they report when it fails. */

let fakes: Fakes;
let servers: TestServers;
let folder: CertificateFolder;
let address: string;

beforeEach(async () => {
  fakes = new Fakes();
  servers = new TestServers();
  folder = await CertificateFolder.create(join(servers.folder, 'certificates'));
  address = await serve(await folder.server());
});
afterEach(async () => {
  await fakes.clear();
  await servers.clear();
});

async function serve(files: TlsFiles): Promise<string> {
  const { addresses } = await servers.serve({
    addresses: ['127.0.0.1:0'],
    certificates: certificateSource(files).source,
    authorize: ({ caller, path }) => {
      if (caller.kind === 'network' && caller.role === 'node')
        throw new Failure('ACCESS_DENIED', `node "${caller.name}": may not call ${path.slice(1)}`);
    },
  });
  return addresses[0]!;
}

const SHOW = ['describe', 'ippool', 'web', '-o', 'json'];

function optionsOf({ ca, identity }: TlsFiles): string[] {
  const files = [
    ['--ipam-ca', ca],
    ['--ipam-cert', identity?.certificate],
    ['--ipam-key', identity?.key],
  ] as const;
  return files.flatMap(([option, file]) => (file ? [option, file.path] : []));
}

const show = (files: TlsFiles, at = address) => fakes.podwirectl('--ipam', at, ...optionsOf(files), ...SHOW);

test('the token of the variables of podwire-node is shown in place of a certificate', async () => {
  const shown: string[] = [];
  const caller = { kind: 'network', role: 'node', name: 'worker-1' } as const;
  const verify = (token: string) => {
    shown.push(token);
    return { caller, check: () => undefined };
  };
  const { source: certificates } = certificateSource(await folder.server());
  const { addresses } = await servers.serve({
    addresses: ['127.0.0.1:0'],
    certificates,
    proofs: { tokens: { verify } },
  });
  const path = join(servers.folder, 'token');
  writeFileSync(path, 'a.b.c\n');

  const variables = {
    PODWIRE_NODE_IPAM_ADDRESS: addresses[0]!,
    PODWIRE_NODE_IPAM_TLS_CA_FILE: folder.caPath,
    PODWIRE_NODE_IPAM_TOKEN_FILE: path,
  };
  expect(await fakes.podwirectlWith(variables, ...SHOW)).toMatchObject({ exitCode: 0 });
  expect(new Set(shown)).toEqual(new Set(['a.b.c']));
});

describe('a certificate', () => {
  test('is named by options', async () => {
    const { exitCode, stdout } = await show(await folder.client('operator', 'alice'));
    expect([exitCode, JSON.parse(stdout)]).toEqual([
      0,
      expect.objectContaining({ pool: expect.objectContaining({ name: 'web' }) }),
    ]);
  });

  test('is named by the variables of podwire-node; options have precedence', async () => {
    const [node, alice] = [await folder.client('node', 'worker-1'), await folder.client('operator', 'alice')];
    const variables = {
      PODWIRE_NODE_IPAM_ADDRESS: address,
      PODWIRE_NODE_IPAM_TLS_CA_FILE: node.ca!.path,
      PODWIRE_NODE_IPAM_TLS_CERT_FILE: node.identity!.certificate.path,
      PODWIRE_NODE_IPAM_TLS_KEY_FILE: node.identity!.key.path,
    };
    expect(await fakes.podwirectlWith(variables, ...SHOW)).toMatchObject({
      exitCode: 1,
      stderr: expect.stringMatching(
        /node "worker-1": may not call .*GetPool \(ACCESS_DENIED\)\nhint: every command is permitted on the unix socket/,
      ),
    });
    const own = ['--ipam-cert', alice.identity!.certificate.path, '--ipam-key', alice.identity!.key.path];
    expect(await fakes.podwirectlWith(variables, ...own, ...SHOW)).toMatchObject({ exitCode: 0 });
  });

  test('is not read by a command that does not call podwire-ipam', async () => {
    await fakes.servePlugin(() => JSON.stringify({ entries: [], unreadable: [], fault: null }));
    const variables = { PODWIRE_NODE_IPAM_ADDRESS: '192.0.2.1:9650', PODWIRE_NODE_IPAM_TLS_CA_FILE: '/none' };
    expect(await fakes.podwirectlWith(variables, 'journal')).toMatchObject({ exitCode: 0 });
  });

  test('that expires is warned about', async () => {
    const { exitCode, stderr } = await show(await folder.client('operator', 'alice', validity({ byHours: -0.95 })));
    expect([exitCode, stderr]).toEqual([
      0,
      expect.stringMatching(/^podwirectl: certificate .*: expires at .*; renew it\n$/),
    ]);
  });
});

describe('a refusal', () => {
  test.each<[string, () => Promise<TlsFiles>, RegExp]>([
    [
      'of a certificate of another authority',
      async () => {
        const other = await CertificateFolder.create(join(servers.folder, 'other'));
        const { identity } = await other.client('operator', 'mallory');
        return { ...folder.withoutCertificate(), identity };
      },
      /it refuses the certificate of --ipam-cert .*operator-mallory\.crt/,
    ],
    [
      'of an expired certificate',
      () => folder.client('operator', 'alice', validity({ byHours: -10 })),
      /it refuses the certificate of --ipam-cert .*it has expired, or it is not for clients/,
    ],
    [
      'of the server by the client',
      async () => {
        const other = await CertificateFolder.create(join(servers.folder, 'other'));
        return { ...(await folder.client('operator', 'alice')), ca: other.withoutCertificate().ca };
      },
      /its certificate is not signed by an authority of --ipam-ca .*ca\.crt/,
    ],
  ])('%s is reported at once', async (_, filesOf, reason) => {
    const { exitCode, stderr } = await show(await filesOf());
    expect([exitCode, stderr]).toEqual([5, expect.stringMatching(reason)]);
    expect(stderr).toContain(`podwire-ipam at ${address}`);
  });

  test('of another server is reported', async () => {
    const impostor = await serve(await folder.client('node', 'worker-2'));
    const { exitCode, stderr } = await show(await folder.client('operator', 'alice'), impostor);
    expect([exitCode, stderr]).toEqual([5, expect.stringContaining('its certificate is not one of podwire-ipam')]);
  });

  test('of a server that has no TLS is reported', async () => {
    const server = await new Promise<Server>((resolve) => {
      const plain = createServer((socket) => socket.end('SSH-2.0-Server\r\n'));
      plain.listen(0, '127.0.0.1', () => resolve(plain));
    });
    try {
      const bound = server.address();
      const port = typeof bound === 'object' ? bound?.port : undefined;
      const { exitCode, stderr } = await show(await folder.client('operator', 'alice'), `127.0.0.1:${port}`);
      expect([exitCode, stderr]).toEqual([5, expect.stringContaining('the answer is not TLS')]);
    } finally {
      server.close();
    }
  });
});

describe('missing files', () => {
  test.each<[string, string[], RegExp]>([
    [
      'all of an address beyond this machine',
      ['--ipam', '192.0.2.1:9650'],
      /needs TLS.*set --ipam-ca \(PODWIRE_NODE_IPAM_TLS_CA_FILE\), --ipam-cert .*, --ipam-key/,
    ],
    [
      'the key',
      ['--ipam', '127.0.0.1:9650', '--ipam-ca', 'a', '--ipam-cert', 'b'],
      /needs TLS.*; set --ipam-key \(PODWIRE_NODE_IPAM_TLS_KEY_FILE\) \(/,
    ],
  ])('%s', async (_, options, reason) => {
    const { exitCode, stderr } = await fakes.podwirectl(...options, ...SHOW);
    expect([exitCode, stderr]).toEqual([2, expect.stringMatching(reason)]);
  });

  test('a file that does not exist is named with its option', async () => {
    const { exitCode, stderr } = await show({
      ca: { setting: '', path: '/none/ca.crt' },
      identity: (await folder.client('operator', 'alice')).identity,
    });
    expect([exitCode, stderr]).toEqual([
      1,
      expect.stringContaining('--ipam-ca names a file that cannot be read: ENOENT'),
    ]);
  });
});

test('the commands of hints have the options that lead to the service', async () => {
  const files = await folder.client('operator', 'alice');
  await fakes.serve(
    foundPool,
    fake(PoolServiceService.deletePool, () => DeletePoolResponse.fromPartial({})),
  );
  const socket = `unix:${fakes.socket}`;
  const { stderr } = await fakes.podwirectl('--ipam', socket, ...optionsOf(files), 'delete', 'ippool', 'main');
  expect(stderr).toContain(`podwirectl --ipam ${socket} --ipam-ca ${files.ca!.path} --ipam-cert`);
});
