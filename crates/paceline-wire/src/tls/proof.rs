//! How two ends prove to each other, within TLS, that they hold the run's key.
//!
//! TLS libraries have no keys that both sides share, so each side's Ed25519 pair is derived from the run's key:
//! whoever holds it knows both pairs, and nobody else can sign. The public keys travel raw (RFC 7250).

use std::sync::Arc;

use hmac::{Hmac, KeyInit, Mac};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{AlwaysResolvesClientRawPublicKeys, Resumption};
use rustls::crypto::ring::cipher_suite::{TLS13_AES_128_GCM_SHA256, TLS13_CHACHA20_POLY1305_SHA256};
use rustls::crypto::ring::{default_provider, kx_group, sign};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{AlwaysResolvesServerRawPublicKeys, NoServerSessionStorage};
use rustls::sign::{CertifiedKey, SigningKey};
use rustls::version::TLS13;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, PeerIncompatible,
    ServerConfig, SignatureScheme,
};
use sha2::Sha256;

use crate::identity::Key;

/// What precedes the 32 bytes of an Ed25519 key in PKCS #8.
const PKCS8: [u8; 16] = *b"\x30\x2e\x02\x01\x00\x30\x05\x06\x03\x2b\x65\x70\x04\x22\x04\x20";
const DIALLER: &[u8] = b"paceline tls 1: dialler\0";
const ACCEPTOR: &[u8] = b"paceline tls 1: acceptor\0";

/// The pair of one side, and its public half as it travels.
fn pair(key: &Key, label: &[u8]) -> (Arc<dyn SigningKey>, CertificateDer<'static>) {
    let mut mac = Hmac::<Sha256>::new_from_slice(key.as_bytes()).expect("any length of key will do");
    mac.update(label);
    let secret = [&PKCS8[..], &mac.finalize().into_bytes()].concat();
    let pair = sign::any_eddsa_type(&PrivatePkcs8KeyDer::from(secret)).expect("32 bytes are an Ed25519 key");
    let public = pair.public_key().expect("an Ed25519 key has a public half").to_vec();
    (pair, CertificateDer::from(public))
}

fn own(key: &Key, label: &[u8]) -> Arc<CertifiedKey> {
    let (pair, public) = pair(key, label);
    Arc::new(CertifiedKey::new(vec![public], pair))
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(CryptoProvider {
        cipher_suites: vec![TLS13_AES_128_GCM_SHA256, TLS13_CHACHA20_POLY1305_SHA256],
        kx_groups: vec![kx_group::X25519],
        ..default_provider()
    })
}

/// What the listening side does. Nothing is remembered between connections.
pub(super) fn server(key: &Key) -> Arc<ServerConfig> {
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .expect("the provider has TLS 1.3")
        .with_client_cert_verifier(Arc::new(Expected::new(key, DIALLER)))
        .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(own(key, ACCEPTOR))));
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Arc::new(config)
}

/// What the dialling side does.
pub(super) fn client(key: &Key) -> Arc<ClientConfig> {
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .expect("the provider has TLS 1.3")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Expected::new(key, ACCEPTOR)))
        .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(own(key, DIALLER))));
    config.resumption = Resumption::disabled();
    config.enable_sni = false;
    Arc::new(config)
}

/// A name that is neither sent nor looked at.
pub(super) fn name() -> ServerName<'static> {
    ServerName::try_from("paceline").expect("a valid name")
}

/// Accepts exactly one public key.
#[derive(Debug)]
struct Expected {
    public: CertificateDer<'static>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl Expected {
    fn new(key: &Key, label: &[u8]) -> Self {
        let algorithms = default_provider().signature_verification_algorithms;
        Self { public: pair(key, label).1, algorithms }
    }

    fn check(&self, found: &CertificateDer<'_>, others: &[CertificateDer<'_>]) -> Result<(), Error> {
        // Public keys are no secrets: there is nothing to compare in constant time.
        if *found == self.public && others.is_empty() {
            return Ok(());
        }
        Err(CertificateError::ApplicationVerificationFailure.into())
    }
}

/// What both sides' verifiers do about signatures.
macro_rules! signatures {
    () => {
        fn verify_tls12_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            // TLS 1.2 is not offered, so nobody asks; if somebody did, this is the nearest that TLS has to say.
            Err(PeerIncompatible::Tls13RequiredForQuic.into())
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            public: &CertificateDer<'_>,
            signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            let public = SubjectPublicKeyInfoDer::from(public.as_ref());
            verify_tls13_signature_with_raw_key(message, &public, signature, &self.algorithms)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            vec![SignatureScheme::ED25519]
        }

        fn requires_raw_public_keys(&self) -> bool {
            true
        }
    };
}

impl ServerCertVerifier for Expected {
    fn verify_server_cert(
        &self,
        found: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check(found, others).map(|()| ServerCertVerified::assertion())
    }

    signatures!();
}

impl ClientCertVerifier for Expected {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        found: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check(found, others).map(|()| ClientCertVerified::assertion())
    }

    signatures!();
}

/// An error of TLS in words that help whoever runs this program.
pub(super) fn explain(error: &Error, shaking: bool) -> String {
    use rustls::AlertDescription::{AccessDenied, BadCertificate, CertificateRequired, DecryptError};
    match error {
        Error::InvalidCertificate(_) => "wrong key".into(),
        Error::AlertReceived(AccessDenied | BadCertificate | DecryptError) if shaking => {
            "wrong key, as the other end says".into()
        }
        Error::AlertReceived(CertificateRequired) => "no key, as the other end says".into(),
        Error::NoCertificatesPresented => "no key".into(),
        Error::InvalidMessage(_) if shaking => format!("expected TLS 1.3, found something else ({error})"),
        Error::PeerIncompatible(_) => format!("expected TLS 1.3 with raw public keys ({error})"),
        Error::DecryptError => "what came was altered on its way, or is not for this connection".into(),
        other => format!("TLS: {other}"),
    }
}
