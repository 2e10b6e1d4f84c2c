// A double of podwire-ipam's listener for enrolment: TLS without client certificates.
import { rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

import {
  EnrolmentServiceService,
  type IssueNodeCertificateRequest,
  type IssueNodeCertificateResponse,
} from '@podwire/proto/podwire/ipam/v1/enrolment';
import { RpcServer } from '@podwire/shared/rpc/server';
import { systemClock } from '@podwire/shared/runtime/clock';
import { certificateSource, CertificateFolder } from '@podwire/shared/testing/certificates';
import { recordingLog } from '@podwire/shared/testing/server';
import type { TlsFiles } from '@podwire/shared/tls/tls-files';

type Answer = (request: IssueNodeCertificateRequest) => Promise<IssueNodeCertificateResponse>;

interface ServiceOptions {
  /** Default: a free port. */
  readonly port?: number;
  /** Default: podwire-ipam's certificate. */
  readonly files?: TlsFiles;
}

/** The service, its authority, and a node's files in a folder. */
export class EnrolmentService {
  readonly folder: string;
  readonly certificates: CertificateFolder;
  /** What the service answers; replaceable. */
  answer: Answer = ({ certificateSigningRequest }) => this.certificates.answer(certificateSigningRequest, 'worker-1');
  /** Tokens of the calls. */
  readonly tokens: string[] = [];
  #server: RpcServer | undefined;
  #port = 0;

  private constructor(folder: string, certificates: CertificateFolder) {
    this.folder = folder;
    this.certificates = certificates;
  }

  /** @param folder - an existing folder */
  static async create(folder: string): Promise<EnrolmentService> {
    const service = new EnrolmentService(folder, await CertificateFolder.create(join(folder, 'authority')));
    service.writeToken('token-1');
    return service;
  }

  get address(): string {
    return `127.0.0.1:${this.#port}`;
  }

  get caFile(): string {
    return this.certificates.caPath;
  }

  get tokenFile(): string {
    return join(this.folder, 'token');
  }

  /** The directory of the node's certificate. */
  get directory(): string {
    return join(this.folder, 'tls');
  }

  /** The options of `certificates enrol`. */
  get options(): string[] {
    const { address, caFile, tokenFile, directory } = this;
    return ['--address', address, '--ca-file', caFile, '--token-file', tokenFile, '--directory', directory];
  }

  writeToken(token: string): void {
    writeFileSync(this.tokenFile, `${token}\n`);
  }

  removeToken(): void {
    rmSync(this.tokenFile);
  }

  /** Listens; after {@link stop}, at the same port. */
  async start({ port = this.#port, files }: ServiceOptions = {}): Promise<void> {
    const { source } = certificateSource(files ?? (await this.certificates.server()));
    const server = new RpcServer({
      addresses: [`127.0.0.1:${port}`],
      log: recordingLog().log,
      clock: systemClock,
      defaultCallTimeoutMs: 10_000,
      drainTimeoutMs: 0,
      certificates: source,
      clientCertificates: 'none',
      services: (unary) => [
        {
          name: 'podwire.ipam.v1.EnrolmentService',
          definition: EnrolmentServiceService,
          implementation: {
            issueNodeCertificate: unary(EnrolmentServiceService.issueNodeCertificate, (request) => {
              this.tokens.push(request.token);
              return this.answer(request);
            }),
          },
        },
      ],
    });
    const [address] = await server.listen();
    this.#port = Number(address?.split(':').at(-1));
    this.#server = server;
  }

  async stop(): Promise<void> {
    await this.#server?.stop();
    this.#server = undefined;
  }
}
